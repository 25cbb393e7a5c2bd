//! `auth_digest`: names and passwords by digest (RFC 7616), checked against a file as `htdigest` writes it.
//!
//! ```nginx
//! location /intern/ {
//!     auth_digest           "closed site";
//!     auth_digest_user_file htdigest;
//! }
//! ```
//!
//! The directives are those of the third-party module nginx-http-auth-digest, which ingress-nginx uses. A line of the
//! file is `name:realm:digest`, the digest being the MD5 of `name:realm:password`: the password need not be sent, but
//! who reads the file can log in. MD5 is what such files have; over TLS, Basic authentication with a slow hash is better.
//!
//! Each request has a count of its own, so a request that was overheard cannot be repeated ([`nonces`]). Clients that
//! guess are refused for a while, by their address.

mod credentials;
mod nonces;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use aws_lc_rs::constant_time;
use base::lru::Lru;
use bstr::{BStr, BString, ByteSlice};
use conf::{
    Arity, Directive, DirectiveTable, Expression, HTTP_SERVER, HTTP_SERVER_LOCATION,
    HTTP_SERVER_LOCATION_EXCEPT, RepeatRule, Setter,
};
use host::error_log::LogLevel;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use proto::known_fields::KnownField;
use proto::message::Method;

use self::credentials::{DigestCredentials, SecretDigest};
use self::nonces::NonceLimits;
use crate::shared::user_file::{self, FileVersion, USER_FILES_KEPT, UserFileContent};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "auth_digest",
    doc: "Restricts access with HTTP Digest authentication.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Access, authenticate)],
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        conf.user_file.is_some() && conf.realm.constant().is_none_or(|realm| realm != "off")
    },
    explain: http::module::ModuleExplain::Runs(&["auth_digest", "auth_digest_user_file"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "auth_digest",
        syntax: "string | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_EXCEPT,
        since: "0.3",
        doc: "Enables Digest authentication with this realm, which may contain variables. `off` cancels what an outer \
              block set.",
        set: Setter::Value(|c| &mut c.realm),
    },
    Directive {
        name: "auth_digest_user_file",
        syntax: "file",
        default: None,
        contexts: HTTP_SERVER_LOCATION_EXCEPT,
        since: "0.3",
        doc: "The file with users, as the command `htdigest` writes it: one `name:realm:digest` per line. A relative \
              path is resolved against the directory of the configuration file. May contain variables.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            let path = line.expression(0)?;
            let folder = line
                .level
                .build
                .conf_prefix_for(conf::PathUse::Read, line.text(0));
            conf.user_file = Some((path, folder));
            Ok(())
        }),
    },
    Directive {
        name: "auth_digest_timeout",
        syntax: "time",
        default: Some("60s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "How long after a challenge the client may begin to use its nonce.",
        set: Setter::Seconds(|c| &mut c.timeout),
    },
    Directive {
        name: "auth_digest_expires",
        syntax: "time",
        default: Some("10s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "How long after its first use a nonce may be used for further requests. Then the client gets a new one, \
              without asking its user again.",
        set: Setter::Seconds(|c| &mut c.expires),
    },
    Directive {
        name: "auth_digest_replays",
        syntax: "number",
        default: Some("20"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "For how many requests a nonce may be used.",
        set: Setter::Number(|c| &mut c.replays, 1, MOST_REPLAYS),
    },
    Directive {
        name: "auth_digest_maxtries",
        syntax: "number",
        default: Some("5"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "After how many failed attempts further ones from that address are refused unseen.",
        set: Setter::Number(|c| &mut c.most_tries, 1, i64::MAX),
    },
    Directive {
        name: "auth_digest_evasion_time",
        syntax: "time",
        default: Some("300s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "For how long they are refused, from the last attempt that failed.",
        set: Setter::Seconds(|c| &mut c.evasion_time),
    },
    Directive {
        name: "auth_digest_drop_time",
        syntax: "time",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.3",
        doc: "Accepted and ignored.",
        set: Setter::Ignored(
            Arity::ONE,
            "an expired nonce is recognised without having been kept",
        ),
    },
    Directive {
        name: "auth_digest_shm_size",
        syntax: "size",
        default: Some("4096k"),
        contexts: HTTP_SERVER,
        since: "0.3",
        doc: "The memory for nonces that were used. When it is full, the oldest are forgotten, and their clients get \
              new ones.",
        set: Setter::Size(|c| &mut c.memory),
    },
]);

/// The largest `auth_digest_replays`: each takes a bit of every nonce.
const MOST_REPLAYS: i64 = 1_000_000;

/// The settings of a location.
#[derive(Clone, Debug, Default)]
struct Conf {
    realm: Expression,
    /// The file, and what relative paths are relative to.
    user_file: Option<(Expression, PathBuf)>,
    timeout: Duration,
    expires: Duration,
    replays: i64,
    most_tries: i64,
    evasion_time: Duration,
    memory: u64,
}

impl Conf {
    fn limits(&self) -> NonceLimits {
        NonceLimits {
            timeout: millis(self.timeout),
            expires: millis(self.expires),
            replays: u32::try_from(self.replays).unwrap_or(u32::MAX),
            memory: self.memory,
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The handler of the access phase.
fn authenticate(request: &mut Request) -> HandlerStep<'_> {
    let conf = request.conf::<Conf>();
    let realm = request.value(&conf.realm);
    let Some((path, folder)) = &conf.user_file else {
        return HandlerOutcome::Declined.into();
    };
    // With variables, the realm can turn out to be `off`.
    if realm == "off" {
        return HandlerOutcome::Declined.into();
    }
    let path = folder.join(conf::parse::path(&request.value(path)));
    let name = match request.method {
        Method::Connect => KnownField::ProxyAuthorization,
        _ => KnownField::Authorization,
    };
    let field = request.head.known(name);
    let sent = field.and_then(|field| DigestCredentials::parse(field));
    // Level `info`: browsers send the first request to a site without credentials.
    let Some(sent) = sent.filter(|sent| sent.realm == realm) else {
        request.log(
            LogLevel::Info,
            format_args!("no credentials were provided for digest authentication"),
        );
        return challenge(request, realm.as_bstr(), NonceState::Unknown).into();
    };
    let address = user_file::attempt_address(request);
    let now = rt::wall_millis();
    if nonces::table().is_evaded(&address, conf.most_tries, now) {
        request.error(format_args!(
            "too many failed attempts of digest authentication, address is refused"
        ));
        return challenge(request, realm.as_bstr(), NonceState::Unknown).into();
    }
    HandlerStep::later(async move {
        let users = match load_users(&path).await {
            Ok(users) => users,
            Err(error) => return user_file::refuse_without_file(request, &path, &error),
        };
        let user = (sent.username.clone(), sent.realm.clone());
        let secret = users.by_name.get(&user);
        let head = &request.head.wire;
        // A digest is computed for unknown names too, with a secret that nobody has: it takes the same time.
        let expected = sent.expected(secret.unwrap_or(&NOBODY), head.method_text());
        let equal = constant_time::verify_slices_are_equal(&expected, &sent.response).is_ok();
        let Some(secret) = secret.filter(|_| equal && sent.is_for(head.target())) else {
            nonces::table().note_failure(&address, millis(conf.evasion_time), now);
            let name = &sent.username;
            request.error(format_args!(
                "user \"{name}\": invalid login for digest authentication"
            ));
            return challenge(request, realm.as_bstr(), NonceState::Unknown);
        };
        let count = sent.count().unwrap_or(0);
        if !nonces::table().take(&sent.nonce, &realm, count, &conf.limits(), now) {
            return challenge(request, realm.as_bstr(), NonceState::Stale);
        }
        nonces::table().forgive(&address);
        prove_knowledge(request, &sent, secret);
        request.user = Some(sent.username);
        HandlerOutcome::Ok
    })
}

/// The secret of a name that is not in the file. No password has it: a digest has other digits.
const NOBODY: SecretDigest = [b'-'; 32];

/// What was wrong with the nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NonceState {
    /// It was not examined.
    Unknown,
    /// The client knows the password, and need not ask its user again (RFC 7616, section 3.3).
    Stale,
}

/// Challenges the client. CONNECT is a request to a proxy, which has its own status and field (RFC
/// 9110, section 11.7).
fn challenge(request: &mut Request, realm: &BStr, state: NonceState) -> HandlerOutcome {
    let (name, status): (&[u8], u16) = match request.method {
        Method::Connect => (b"Proxy-Authenticate", 407),
        _ => (b"WWW-Authenticate", 401),
    };
    let nonce = nonces::table().issue(realm, rt::wall_millis());
    request.out.fields.push_with(name, |out| {
        out.extend_from_slice(b"Digest realm=\"");
        write_quoted(realm, out);
        out.extend_from_slice(b"\", qop=\"auth\", algorithm=MD5, nonce=\"");
        out.extend_from_slice(&nonce);
        out.push(b'"');
        if state == NonceState::Stale {
            out.extend_from_slice(b", stale=true");
        }
    });
    HandlerOutcome::Status(status)
}

/// Shows the client that the server knows the password, too (RFC 7616, section 3.5).
fn prove_knowledge(request: &mut Request, sent: &DigestCredentials, secret: &SecretDigest) {
    let proof = sent.server_proof(secret);
    request.out.fields.push_with(b"Authentication-Info", |out| {
        out.extend_from_slice(b"qop=auth, rspauth=\"");
        out.extend_from_slice(&proof);
        out.extend_from_slice(b"\", cnonce=\"");
        write_quoted(&sent.cnonce, out);
        out.extend_from_slice(b"\", nc=");
        out.extend_from_slice(&sent.nc);
    });
}

fn write_quoted(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
}

/// The contents of a file with users.
struct DigestFile {
    version: FileVersion,
    /// By name and realm.
    by_name: HashMap<(BString, BString), SecretDigest>,
}

rt::local! {
    static FILES: RefCell<Lru<PathBuf, Rc<DigestFile>>> = RefCell::new(Lru::new(USER_FILES_KEPT));
}

/// The current contents of a file, read only if its version has changed.
async fn load_users(path: &Path) -> io::Result<Rc<DigestFile>> {
    let known = |version| {
        FILES.with_borrow_mut(|files| {
            let read = files.get(path)?;
            (read.version == version).then(|| Rc::clone(read))
        })
    };
    Ok(match user_file::load(path, known, parse_users).await? {
        UserFileContent::Known(users) => users,
        UserFileContent::Fresh(users) => {
            FILES.with_borrow_mut(|files| files.insert(path.to_owned(), Rc::clone(&users)));
            users
        }
    })
}

/// Parses a file. The first line of a name in a realm counts; lines that are none are skipped.
fn parse_users(text: &[u8], version: FileVersion) -> DigestFile {
    let mut by_name = HashMap::new();
    for line in text.lines() {
        // Files edited on Windows.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut parts = line.splitn_str(4, b":");
        let (Some(name), Some(realm), Some(digest)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let digest = digest.to_ascii_lowercase();
        let Ok(digest) = SecretDigest::try_from(digest) else {
            continue;
        };
        if !line.starts_with(b"#") && digest.iter().all(u8::is_ascii_hexdigit) {
            let user = (BString::from(name), BString::from(realm));
            by_name.entry(user).or_insert(digest);
        }
    }
    DigestFile { version, by_name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_users() {
        let digest = "939e7578ed9e3c518a452acee763bce9";
        let upper = digest.to_ascii_uppercase();
        let text = format!(
            "# a:r:{digest}\na:r:{upper}\r\na:r:00000000000000000000000000000000\nb:r:{digest}:comment\nc:{digest}\n\
             d:r:{digest}0\ne:r:{}\n",
            "g".repeat(32)
        );
        let users = parse_users(text.as_bytes(), FileVersion::default()).by_name;
        let of = |name: &str| {
            users
                .get(&(name.into(), "r".into()))
                .map(|found| found.as_bstr())
        };
        assert_eq!(of("a"), Some(BStr::new(digest)));
        assert_eq!(of("b"), Some(BStr::new(digest)));
        assert_eq!(users.len(), 2);
    }
}
