//! `auth_basic`: names and passwords (RFC 7617), checked against a file of hashes.
//!
//! ```nginx
//! location /intern/ {
//!     auth_basic           "closed site";
//!     auth_basic_user_file htpasswd;
//! }
//! ```
//!
//! A line of the file is `name:hash` or `name:hash:comment`; the supported hashes are listed in
//! [`crate::shared::password`]; how the file is read, in [`crate::shared::user_file`]. Comparing with
//! a slow hash happens on other threads.
//!
//! A password is hashed and compared even if the name is not in the file, so that the response time
//! does not reveal which names exist. How many are compared at a time, and `auth_basic_cache`, is in [`verification`].

mod verification;

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher as _;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use base::lru::Lru;
use bstr::{BStr, BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression,
    HTTP_SERVER_LOCATION_EXCEPT, RepeatRule, Setter, parse,
};
use host::error_log::LogLevel;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use proto::message::Method;

use self::verification::{AttemptOutcome, PasswordAttempt, ProofMemory};
use crate::shared::password::PasswordHash;
use crate::shared::user_file::{self, FileVersion, USER_FILES_KEPT, UserFileContent};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "auth_basic",
    doc: "Restricts access with HTTP Basic authentication.",
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Access, authenticate)],
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        conf.user_file.is_some() && conf.realm.constant().is_none_or(|realm| realm != "off")
    },
    explain: http::module::ModuleExplain::Runs(&["auth_basic", "auth_basic_user_file"]),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[
    Directive {
        name: "auth_basic",
        syntax: "string | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_EXCEPT,
        since: "0.1",
        doc: "Enables Basic authentication with this realm, which may contain variables. `off` cancels what an outer \
              block set.",
        set: Setter::Value(|c| &mut c.realm),
    },
    Directive {
        name: "auth_basic_user_file",
        syntax: "file",
        default: None,
        contexts: HTTP_SERVER_LOCATION_EXCEPT,
        since: "0.1",
        doc: "The file with user names and password hashes, one `name:hash` per line. A relative path is resolved \
              against the directory of the configuration file. May contain variables.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |conf, line| {
            let path = line.expression(0)?;
            let folder = line
                .level
                .build
                .conf_prefix_for(conf::PathUse::Read, line.text(0));
            conf.user_file = Some(UserFile { path, folder });
            Ok(())
        }),
    },
    Directive {
        // nginx has nothing like it.
        name: "auth_basic_cache",
        syntax: "off | interval [entries=number]",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION_EXCEPT,
        since: "0.3",
        doc: "How long a password that was correct is accepted without computing its slow hash again, for the same user \
              and the same version of the file. At most `entries` (1024) passwords are remembered per file, as keyed \
              hashes in memory, until the file changes or the server ends. An attacker who reads that memory can try \
              passwords fast, which slow hashes prevent otherwise.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, read_cache),
    },
]);

/// Reads an `auth_basic_cache` line.
fn read_cache(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if line.text(0) == "off" && line.args().len() == 1 {
        conf.memory = None;
        return Ok(());
    }
    let interval = line.seconds(0)?;
    if interval.is_zero() {
        return Err(line.directive_error_at(0, "must be at least a second, or off"));
    }
    let mut entries = PROOFS_KEPT;
    if line.args().len() > 1 {
        let Some(value) = parse::parameter(line.text(1), "entries") else {
            return Err(line.invalid_parameter(1));
        };
        let number = base::text::decimal(value).and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| (1..=MOST_PROOFS).contains(number));
        entries = number.ok_or_else(|| {
            line.invalid_value(1)
                .note(format!("a number from 1 to {MOST_PROOFS}"))
        })?;
    }
    conf.memory = Some(ProofMemory { interval, entries });
    Ok(())
}

/// How many proofs are remembered for a file if the line does not say, and at most.
const PROOFS_KEPT: usize = 1024;
const MOST_PROOFS: usize = 1_000_000;

/// The realm and the file of a location.
#[derive(Clone, Debug, Default)]
struct Conf {
    realm: Expression,
    user_file: Option<UserFile>,
    memory: Option<ProofMemory>,
}

/// `auth_basic_user_file`.
#[derive(Clone, Debug)]
struct UserFile {
    path: Expression,
    /// What relative paths are relative to.
    folder: PathBuf,
}

/// The handler of the access phase.
fn authenticate(request: &mut Request) -> HandlerStep<'_> {
    let conf = request.conf::<Conf>();
    let realm = request.value(&conf.realm);
    let Some(file) = &conf.user_file else {
        return HandlerOutcome::Declined.into();
    };
    // With variables, the realm can turn out to be `off`.
    if realm == "off" {
        return HandlerOutcome::Declined.into();
    }
    // Level `info`: browsers send the first request to a site without credentials.
    let Some((name, password)) = request.basic_credentials() else {
        request.log(
            LogLevel::Info,
            format_args!("no user/password was provided for basic authentication"),
        );
        return challenge_client(request, realm.as_bstr()).into();
    };
    let path = file
        .folder
        .join(conf::parse::path(&request.value(&file.path)));
    HandlerStep::later(async move {
        let users = match load_users(&path).await {
            Ok(users) => users,
            Err(error) => return user_file::refuse_without_file(request, &path, &error),
        };
        let address = user_file::attempt_address(request);
        let attempt = |hash| PasswordAttempt {
            file: &path,
            version: users.version,
            name: name.as_bstr(),
            password: password.as_bstr(),
            hash,
            address: &address,
            memory: conf.memory,
        };
        let Some(hash) = users.by_name.get(name.as_bstr()) else {
            if let Some(hash) = users.decoy_hash(name.as_bstr()) {
                // Whether it matches does not matter, only that it takes as long as for an existing name.
                let outcome = verification::verify(&attempt(hash)).await;
                if outcome == AttemptOutcome::Crowded {
                    return refuse_attempt(request, name.as_bstr());
                }
            }
            request.error(format_args!(
                "user \"{name}\" was not found in \"{}\"",
                path.display()
            ));
            return challenge_client(request, realm.as_bstr());
        };
        // A mistake in the file, which the 401 makes look like the user's: the log tells.
        if **hash == PasswordHash::Unknown {
            request.log(
                LogLevel::Crit,
                format_args!("user \"{name}\": unknown password hash format"),
            );
            return challenge_client(request, realm.as_bstr());
        }
        match verification::verify(&attempt(hash)).await {
            AttemptOutcome::Matches => {
                request.user = Some(name);
                HandlerOutcome::Ok
            }
            AttemptOutcome::Differs => {
                request.error(format_args!("user \"{name}\": password mismatch"));
                challenge_client(request, realm.as_bstr())
            }
            AttemptOutcome::Crowded => refuse_attempt(request, name.as_bstr()),
        }
    })
}

/// Challenges the client. CONNECT is a request to a proxy, which has its own status and field (RFC
/// 9110, section 11.7).
fn challenge_client(request: &mut Request, realm: &BStr) -> HandlerOutcome {
    let (name, status): (&[u8], u16) = match request.method {
        Method::Connect => (b"Proxy-Authenticate", 407),
        _ => (b"WWW-Authenticate", 401),
    };
    request.out.fields.push_with(name, |out| {
        out.extend_from_slice(b"Basic realm=\"");
        out.extend_from_slice(realm);
        out.push(b'"');
    });
    HandlerOutcome::Status(status)
}

/// The response to an attempt beyond those that may wait for this user or this address.
fn refuse_attempt(request: &mut Request, name: &BStr) -> HandlerOutcome {
    request.error(format_args!(
        "user \"{name}\": too many passwords are being compared for this user or address"
    ));
    HandlerOutcome::Status(503)
}

/// The contents of a password file.
struct PasswordFile {
    version: FileVersion,
    by_name: HashMap<BString, Arc<PasswordHash>>,
    /// The hashes that a password can match, in the order of the file.
    hashes: Vec<Arc<PasswordHash>>,
}

/// Determines which hash stands in for which unknown name. Random at each start, so that a client
/// cannot predict it and thereby tell unknown names from known ones.
static SECRET: OnceLock<rt::random::RandomState> = OnceLock::new();

impl PasswordFile {
    /// A hash to compare an unknown name's password with, so that the response time does not reveal
    /// which names exist. A name always gets the same one: where hashes take different times, a
    /// known name's time is constant too.
    fn decoy_hash(&self, name: &BStr) -> Option<&Arc<PasswordHash>> {
        let number = SECRET
            .get_or_init(rt::random::RandomState::new)
            .hash_one(name);
        let at = number.checked_rem(self.hashes.len() as u64)?;
        self.hashes.get(at as usize)
    }
}

rt::local! {
    static FILES: RefCell<Lru<PathBuf, Rc<PasswordFile>>> = RefCell::new(Lru::new(USER_FILES_KEPT));
}

/// The current contents of a file, read only if its version has changed.
async fn load_users(path: &Path) -> io::Result<Rc<PasswordFile>> {
    let known = |version| {
        let found = FILES.with_borrow_mut(|files| {
            let read = files.get(path)?;
            (read.version == version).then(|| Rc::clone(read))
        });
        if found.is_none() {
            verification::forget_former(path, version);
        }
        found
    };
    Ok(match user_file::load(path, known, parse_users).await? {
        UserFileContent::Known(users) => users,
        UserFileContent::Fresh(users) => {
            FILES.with_borrow_mut(|files| files.insert(path.to_owned(), Rc::clone(&users)));
            users
        }
    })
}

/// Parses a password file. The first line of a name counts; comments and lines without a colon are
/// skipped, as in nginx.
fn parse_users(text: &[u8], version: FileVersion) -> PasswordFile {
    let mut users = PasswordFile {
        version,
        by_name: HashMap::new(),
        hashes: Vec::new(),
    };
    for line in text.lines() {
        // Files edited on Windows.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            continue;
        }
        let Some((name, rest)) = line.split_once_str(b":") else {
            continue;
        };
        let hash = rest
            .split_once_str(b":")
            .map_or(rest, |(hash, _comment)| hash);
        if let Entry::Vacant(entry) = users.by_name.entry(name.into()) {
            let hash = entry.insert(Arc::new(PasswordHash::parse(hash)));
            if !matches!(**hash, PasswordHash::Malformed | PasswordHash::Unknown) {
                users.hashes.push(Arc::clone(hash));
            }
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn parse(text: &[u8]) -> PasswordFile {
        parse_users(text, FileVersion::default())
    }

    #[test]
    fn the_first_line_of_a_name_counts() {
        let users = parse(b"# bob:{PLAIN}no\r\nbob:{PLAIN}one:comment\r\n\nbob:{PLAIN}two\nbroken\n:x\nlast:{PLAIN}end");
        let fits = |name: &str, password: &str| {
            users.by_name[BStr::new(name)].matches(password.as_bytes())
        };
        assert!(fits("bob", "one") && !fits("bob", "two") && fits("last", "end"));
        assert!(
            !users.by_name.contains_key(BStr::new("broken"))
                && !users.by_name.contains_key(BStr::new("# bob"))
        );
    }

    #[test]
    fn an_unknown_name_has_a_hash_of_its_own_to_be_compared_with() {
        let users = parse(b"a:{PLAIN}1\nb:{PLAIN}2\nb:{PLAIN}3\nc:{PLAIN}4\n");
        assert_eq!(users.hashes.len(), 3);
        let hash = |name: &str| users.decoy_hash(BStr::new(name)).map(Arc::as_ptr);
        assert!(hash("mallory").is_some());
        assert_eq!(hash("mallory"), hash("mallory"));
        let different: HashSet<_> = (0..100).map(|n| hash(&format!("name{n}"))).collect();
        assert_eq!(different.len(), 3);
        assert!(parse(b"").decoy_hash(BStr::new("mallory")).is_none());
    }
}
