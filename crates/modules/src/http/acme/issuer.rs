//! `acme_issuer`: a certificate authority as configured.

use std::path::{Path, PathBuf};

use base64::Engine;
use bstr::ByteSlice;
use conf::{Diagnostic, DirectiveLine, DirectiveNode};
use http::configure::RequiredDirectories;
use net::tls::{ClientOptions, ClientSettings, TrustStore};
use std::sync::Arc;

use super::IssuerName;

/// The maximum number of certificates between the server's and a trusted one.
const MAX_DEPTH: usize = 10;

/// An `acme_issuer` block.
pub(super) struct AcmeIssuer {
    pub(super) name: IssuerName,
    /// The URL of its directory (RFC 8555, section 7.1.1).
    pub(super) uri: String,
    /// URLs such as `mailto:admin@example.com`.
    pub(super) contacts: Vec<String>,
    /// Without this the server refuses to create an account (RFC 8555, section 7.3).
    pub(super) accepts_terms: bool,
    pub(super) challenge: ChallengeMethod,
    /// Where accounts and certificates are stored; `None`: in memory only.
    pub(super) folder: Option<PathBuf>,
    /// The account key, PEM; `None`: one is generated.
    pub(super) account_key: Option<String>,
    /// The key id and the secret for external account binding (RFC 8555, section 7.3.4).
    pub(super) external: Option<(String, Vec<u8>)>,
    /// The certificate profile to request, and whether it is required.
    pub(super) profile: Option<(String, bool)>,
    /// `common_name_in_csr`: whether the first name also goes into the subject.
    pub(super) common_name: bool,
    /// Built once, with the trust store.
    pub(super) tls: ClientSettings,
    pub(super) verifies: bool,
}

/// How we prove control of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ChallengeMethod {
    #[default]
    Http,
    Tls,
}

/// The key type of a certificate.
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

    /// Parses a key type as in `key=ecdsa:384`.
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

/// `state_path`.
#[derive(Default)]
enum StatePath {
    /// `acme_NAME` in the server's state directory.
    #[default]
    Default,
    At(PathBuf),
    None,
}

/// The lines of the block while it is being read; they can come in any order.
#[derive(Default)]
struct IssuerDraft {
    uri: Option<String>,
    contacts: Vec<String>,
    accepts_terms: bool,
    challenge: ChallengeMethod,
    folder: StatePath,
    account_key: Option<String>,
    external: Option<(String, Vec<u8>)>,
    profile: Option<(String, bool)>,
    common_name: bool,
    /// `None`: the system's trust store.
    trusted: Option<PathBuf>,
    /// `ssl_verify off`
    skips_verification: bool,
}

impl AcmeIssuer {
    /// Reads `acme_issuer name { … }`.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<AcmeIssuer, Diagnostic> {
        // A reload looks at what the state folder contains by now.
        line.must_read_all();
        let mut reading = IssuerDraft::default();
        for entry in line.entries() {
            reading.read_row(line, &entry)?;
        }
        let name = IssuerName::from(line.text(0));
        // There is no default: to choose an authority is to accept its terms.
        let Some(uri) = reading.uri.take() else {
            return Err(line.error(format!("issuer \"{name}\" has no \"uri\"")));
        };
        // The library binds an account only if it also generates the key.
        if reading.account_key.is_some() && reading.external.is_some() {
            return Err(line.error("\"external_account_key\" needs a key that is made for it, not an \"account_key\" file"));
        }
        let verifies = !reading.skips_verification;
        // Built now, so that a missing trust store is an error of the configuration and not of the first renewal,
        // weeks later.
        let tls = reading.client_settings(line)?;
        let folder = match reading.folder {
            StatePath::Default => {
                let folder = format!("acme_{name}");
                Some(line.level.build.in_temporary(&folder))
            }
            StatePath::At(folder) => Some(folder),
            StatePath::None => None,
        };
        // They must exist before the worker starts, which may not create them any more.
        line.shared::<RequiredDirectories>()
            .0
            .extend(folder.clone());
        Ok(AcmeIssuer {
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
            verifies,
        })
    }

    /// Identifies the account. Includes the directory's URL, so that switching from a staging
    /// authority to the real one does not reuse the account.
    pub(super) fn account_name(&self) -> String {
        format!("{} {}", self.name, self.uri)
    }
}

/// The directives of the block.
const DIRECTIVES: [&[u8]; 12] = [
    b"uri",
    b"contact",
    b"accept_terms_of_service",
    b"challenge",
    b"state_path",
    b"account_key",
    b"external_account_key",
    b"profile",
    b"common_name_in_csr",
    b"ssl_trusted_certificate",
    b"ssl_verify",
    b"preferred_chain",
];

impl IssuerDraft {
    /// The TLS settings of connections to the authority. Without `ssl_verify` no trust store is
    /// needed, so a missing one is no error then.
    fn client_settings(&mut self, line: &mut DirectiveLine) -> Result<ClientSettings, Diagnostic> {
        let trust = match self.skips_verification {
            true => None,
            false => Some(Arc::new(self.trust(line)?)),
        };
        let options = ClientOptions {
            server_name: true,
            trust,
            ..ClientOptions::default()
        };
        options
            .build()
            .map_err(|problem| line.error(problem.message))
    }

    /// The certificates that the authority's own is verified with.
    fn trust(&mut self, line: &mut DirectiveLine) -> Result<TrustStore, Diagnostic> {
        let known = || net::tls::system_trust().map(Path::to_owned);
        let Some(trusted) = self.trusted.take().or_else(known) else {
            return Err(line.error(
                "no CA certificates are installed, so the authority cannot be verified: install \
                 ca-certificates, or name a file with \"ssl_trusted_certificate\"",
            ));
        };
        let file = trusted.display().to_string();
        let text = read(line, &trusted).map_err(|why| line.error(why))?;
        let mut trust = TrustStore::without_anchors(MAX_DEPTH);
        trust
            .add_certificates(&text, &file)
            .map_err(|problem| line.error(problem.message))?;
        Ok(trust)
    }

    /// Reads one line of the block.
    fn read_row(
        &mut self,
        line: &mut DirectiveLine,
        entry: &DirectiveNode,
    ) -> Result<(), Diagnostic> {
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
                // RFC 8555, section 6.1.
                if !is_https(uri) {
                    return Err(invalid().note("the URL of an authority must begin with https://"));
                }
                self.uri = Some((*uri).to_owned());
            }
            (b"contact", contacts) if !contacts.is_empty() => {
                self.contacts = contacts.iter().map(|text| contact(text)).collect();
            }
            (b"accept_terms_of_service", []) => self.accepts_terms = true,
            (b"challenge", ["http-01" | "http"]) => self.challenge = ChallengeMethod::Http,
            (b"challenge", ["tls-alpn-01" | "tls-alpn"]) => self.challenge = ChallengeMethod::Tls,
            (b"state_path", ["off"]) => self.folder = StatePath::None,
            (b"state_path", [_]) => {
                self.folder = StatePath::At(line.prefix_path(conf::PathUse::Write, &entry.args[0]))
            }
            // The kind that is generated anyway.
            (b"account_key", ["ecdsa" | "ecdsa:256"]) => self.account_key = None,
            (b"account_key", [kind]) if kind.starts_with("rsa:") || kind.starts_with("ecdsa:") => {
                return Err(invalid().note("it must be ecdsa:256, or a file with such a key"));
            }
            (b"account_key", [_]) => {
                let text = read_named(line, entry, 0)?;
                self.account_key = Some(text.to_str_lossy().into_owned());
            }
            (b"external_account_key", [id, key]) => {
                let secret = read_secret(line, entry, key)?
                    .ok_or_else(|| invalid().note("the key must be in base64url"))?;
                self.external = Some(((*id).to_owned(), secret));
            }
            (b"profile", [name]) => self.profile = Some(((*name).to_owned(), false)),
            (b"profile", [name, "require"]) => self.profile = Some(((*name).to_owned(), true)),
            (b"common_name_in_csr", ["on"]) => self.common_name = true,
            (b"common_name_in_csr", ["off"]) => self.common_name = false,
            (b"ssl_trusted_certificate", [_]) => {
                self.trusted = Some(line.path(conf::PathUse::Opened, &entry.args[0]))
            }
            (b"ssl_verify", ["on"]) => self.skips_verification = false,
            (b"ssl_verify", ["off"]) => self.skips_verification = true,
            // Accepted, as nginx's module has it.
            (b"preferred_chain", [_]) => {
                line.level.report(Diagnostic::warning(
                    "\"preferred_chain\" has no effect: the chain that the server sends is used",
                    entry.name.span,
                ));
            }
            // Known names with wrong parameters, as opposed to unknown names.
            _ if DIRECTIVES.contains(&name) => return Err(invalid()),
            _ => {
                let name = &entry.name.text;
                return Err(entry.error(format!("unknown directive \"{name}\" in an issuer")));
            }
        }
        Ok(())
    }
}

/// A contact as a URL; plain addresses are e-mail.
fn contact(text: &str) -> String {
    match text.contains(':') {
        true => text.to_owned(),
        false => format!("mailto:{text}"),
    }
}

/// Whether a URL is one of HTTPS.
fn is_https(uri: &str) -> bool {
    let parsed = uri.parse::<http_types::Uri>().ok();
    parsed.is_some_and(|uri| uri.scheme_str() == Some("https"))
}

/// The secret of `external_account_key`, in the line itself or in a file; `None` if it is not base64url.
fn read_secret(
    line: &mut DirectiveLine,
    entry: &DirectiveNode,
    key: &str,
) -> Result<Option<Vec<u8>>, Diagnostic> {
    let text = match key.strip_prefix("data:") {
        Some(key) => key.as_bytes().to_vec(),
        None => read_named(line, entry, 1)?,
    };
    Ok(decode_secret(&text))
}

/// Base64url, with or without padding.
fn decode_secret(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim().trim_end_with(|c| c == '=');
    base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(text)
        .ok()
}

/// The content of the file that a word names.
fn read_named(
    line: &mut DirectiveLine,
    entry: &DirectiveNode,
    word: usize,
) -> Result<Vec<u8>, Diagnostic> {
    let path = line.path(conf::PathUse::Opened, &entry.args[word]);
    read(line, &path).map_err(|why| entry.error(why))
}

/// Reads a file named in the block.
fn read(line: &mut DirectiveLine, path: &Path) -> Result<Vec<u8>, String> {
    line.files().read(path).map_err(|error| {
        let why = base::text::errno_text(&error);
        format!("open() \"{}\" failed {why}", path.display())
    })
}
