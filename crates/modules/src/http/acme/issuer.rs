//! `acme_issuer`: what the configuration says of a certificate authority.

use std::path::{Path, PathBuf};

use base64::Engine;
use bstr::ByteSlice;
use conf::{Diagnostic, Line, Node};
use http::configure::Directories;
use net::tls::{ClientOptions, ClientSettings, Trust};
use std::sync::Arc;

use super::Name;

/// The longest path of certificates between the server's and a trusted one.
const MAX_DEPTH: usize = 10;

/// A certificate authority.
pub(super) struct Issuer {
    pub(super) name: Name,
    /// Its directory.
    pub(super) uri: String,
    /// URLs such as `mailto:somebody@example.com`.
    pub(super) contacts: Vec<String>,
    pub(super) accepts_terms: bool,
    pub(super) challenge: Challenge,
    /// Where accounts and certificates are kept; `None`: nowhere but in memory.
    pub(super) folder: Option<PathBuf>,
    /// The account's key, PEM; `None`: one is made.
    pub(super) account_key: Option<String>,
    /// The id and the secret that bind the account to one that the authority knows.
    pub(super) external: Option<(String, Vec<u8>)>,
    /// The profile of certificates, and whether nothing else will do.
    pub(super) profile: Option<(String, bool)>,
    /// Requests name their first name in the subject too.
    pub(super) common_name: bool,
    pub(super) tls: ClientSettings,
    pub(super) verifies: bool,
}

/// How it is proven that a name is ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Challenge {
    #[default]
    Http,
    Tls,
}

/// The key of a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KeyKind {
    #[default]
    P256,
    P384,
    P521,
    Rsa2048,
    Rsa3072,
    Rsa4096,
}

impl KeyKind {
    #[cfg(test)]
    pub(super) const ALL: [KeyKind; 6] = [
        KeyKind::P256,
        KeyKind::P384,
        KeyKind::P521,
        KeyKind::Rsa2048,
        KeyKind::Rsa3072,
        KeyKind::Rsa4096,
    ];

    /// As in `key=ecdsa:384`.
    pub(super) fn parse(text: &[u8]) -> Option<KeyKind> {
        Some(match text {
            b"ecdsa" | b"ecdsa:256" => KeyKind::P256,
            b"ecdsa:384" => KeyKind::P384,
            b"ecdsa:521" => KeyKind::P521,
            b"rsa" | b"rsa:2048" => KeyKind::Rsa2048,
            b"rsa:3072" => KeyKind::Rsa3072,
            b"rsa:4096" => KeyKind::Rsa4096,
            _ => return None,
        })
    }
}

enum Folder {
    /// `acme_NAME` where the server keeps its state.
    Default,
    At(PathBuf),
    None,
}

/// What rows of the block say, before it is put together.
struct Reading {
    uri: Option<String>,
    contacts: Vec<String>,
    accepts_terms: bool,
    challenge: Challenge,
    folder: Folder,
    account_key: Option<String>,
    external: Option<(String, Vec<u8>)>,
    profile: Option<(String, bool)>,
    common_name: bool,
    /// `None`: what the system trusts.
    trusted: Option<PathBuf>,
    verifies: bool,
}

impl Issuer {
    /// Reads `acme_issuer name { … }`.
    pub(super) fn read(line: &mut Line) -> Result<Issuer, Diagnostic> {
        let mut reading = Reading {
            uri: None,
            contacts: Vec::new(),
            accepts_terms: false,
            challenge: Challenge::default(),
            folder: Folder::Default,
            account_key: None,
            external: None,
            profile: None,
            common_name: false,
            trusted: None,
            verifies: true,
        };
        for entry in line.entries() {
            reading.row(line, entry)?;
        }
        let name = Name::from(line.text(0));
        let Some(uri) = reading.uri else {
            return Err(line.error(format!("issuer \"{name}\" has no \"uri\"")));
        };
        if reading.account_key.is_some() && reading.external.is_some() {
            return Err(line.error("\"external_account_key\" needs a key that is made for it, not an \"account_key\" file"));
        }
        let mut trust = Trust::nobody(MAX_DEPTH);
        if reading.verifies {
            let known = || net::tls::system_trust().map(Path::to_owned);
            let Some(trusted) = reading.trusted.or_else(known) else {
                return Err(line.error(
                    "no certificates are installed that an authority could be verified with: install \
                     ca-certificates, or name a file with \"ssl_trusted_certificate\"",
                ));
            };
            let file = trusted.display().to_string();
            let text = read(line, &trusted).map_err(|why| line.error(why))?;
            trust
                .add_certificates(&text, &file)
                .map_err(|problem| line.error(problem.message))?;
        }
        let options = ClientOptions {
            server_name: true,
            trust: reading.verifies.then(|| Arc::new(trust)),
            ..ClientOptions::default()
        };
        let tls = options
            .build()
            .map_err(|problem| line.error(problem.message))?;
        let folder = match reading.folder {
            Folder::Default => {
                let folder = format!("acme_{name}");
                Some(line.level.build.in_temporary(&folder))
            }
            Folder::At(folder) => Some(folder),
            Folder::None => None,
        };
        line.shared::<Directories>().0.extend(folder.clone());
        Ok(Issuer {
            name,
            uri,
            contacts: reading.contacts,
            accepts_terms: reading.accepts_terms,
            challenge: reading.challenge,
            folder,
            account_key: reading.account_key,
            external: reading.external,
            profile: reading.profile,
            common_name: reading.common_name,
            tls,
            verifies: reading.verifies,
        })
    }

    /// What its account is known by: another authority has another one.
    pub(super) fn account_name(&self) -> String {
        format!("{} {}", self.name, self.uri)
    }
}

impl Reading {
    fn row(&mut self, line: &mut Line, entry: &Node) -> Result<(), Diagnostic> {
        let name = entry.name.text.as_slice();
        let words: Vec<String> = entry
            .args
            .iter()
            .map(|word| word.text.to_string())
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let invalid = || {
            let name = &entry.name.text;
            entry.error(format!("invalid parameters of \"{name}\" in an issuer"))
        };
        match (name, &words[..]) {
            (b"uri", [uri]) => {
                let parsed = uri.parse::<http_types::Uri>().ok();
                if parsed.is_none_or(|uri| uri.scheme_str() != Some("https")) {
                    return Err(invalid().note("the address of an authority begins with https://"));
                }
                self.uri = Some((*uri).to_owned());
            }
            (b"contact", contacts) if !contacts.is_empty() => {
                self.contacts = contacts.iter().map(|text| contact(text)).collect();
            }
            (b"accept_terms_of_service", []) => self.accepts_terms = true,
            (b"challenge", ["http-01" | "http"]) => self.challenge = Challenge::Http,
            (b"challenge", ["tls-alpn-01" | "tls-alpn"]) => self.challenge = Challenge::Tls,
            (b"state_path", ["off"]) => self.folder = Folder::None,
            (b"state_path", [_]) => {
                self.folder = Folder::At(line.prefix_path(conf::Access::Write, &entry.args[0]))
            }
            (b"account_key", ["ecdsa" | "ecdsa:256"]) => self.account_key = None,
            (b"account_key", [kind]) if kind.starts_with("rsa:") || kind.starts_with("ecdsa:") => {
                return Err(invalid().note("account keys are ecdsa:256, or a file with such a key"));
            }
            (b"account_key", [_]) => {
                let path = line.path(conf::Access::Opened, &entry.args[0]);
                let text = read(line, &path).map_err(|why| entry.error(why))?;
                self.account_key = Some(text.to_str_lossy().into_owned());
            }
            (b"external_account_key", [id, key]) => {
                let text = match key.strip_prefix("data:") {
                    Some(key) => key.as_bytes().to_vec(),
                    None => {
                        let path = line.path(conf::Access::Opened, &entry.args[1]);
                        read(line, &path).map_err(|why| entry.error(why))?
                    }
                };
                let secret = base64::engine::general_purpose::URL_SAFE_NO_PAD
                    .decode(text.trim().trim_end_with(|c| c == '='))
                    .map_err(|_| invalid().note("the key is written in base64url"))?;
                self.external = Some(((*id).to_owned(), secret));
            }
            (b"profile", [name]) => self.profile = Some(((*name).to_owned(), false)),
            (b"profile", [name, "require"]) => self.profile = Some(((*name).to_owned(), true)),
            (b"common_name_in_csr", ["on"]) => self.common_name = true,
            (b"common_name_in_csr", ["off"]) => self.common_name = false,
            (b"ssl_trusted_certificate", [_]) => {
                self.trusted = Some(line.path(conf::Access::Opened, &entry.args[0]))
            }
            (b"ssl_verify", ["on"]) => self.verifies = true,
            (b"ssl_verify", ["off"]) => self.verifies = false,
            (b"preferred_chain", [_]) => {
                line.level.report(Diagnostic::warning(
                    "\"preferred_chain\" has no effect: the chain that the server sends is taken",
                    entry.name.span,
                ));
            }
            (
                b"uri"
                | b"contact"
                | b"accept_terms_of_service"
                | b"challenge"
                | b"state_path"
                | b"account_key"
                | b"external_account_key"
                | b"profile"
                | b"common_name_in_csr"
                | b"ssl_trusted_certificate"
                | b"ssl_verify"
                | b"preferred_chain",
                _,
            ) => return Err(invalid()),
            _ => {
                let name = &entry.name.text;
                return Err(entry.error(format!("unknown directive \"{name}\" in an issuer")));
            }
        }
        Ok(())
    }
}

fn contact(text: &str) -> String {
    match text.contains(':') {
        true => text.to_owned(),
        false => format!("mailto:{text}"),
    }
}

fn read(line: &mut Line, path: &Path) -> Result<Vec<u8>, String> {
    line.files().read(path).map_err(|error| {
        let why = base::text::errno_text(&error);
        format!("open() \"{}\" failed {why}", path.display())
    })
}
