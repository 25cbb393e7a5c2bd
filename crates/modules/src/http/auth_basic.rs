//! `auth_basic`: names and passwords (RFC 7617), checked against a file of hashes.
//!
//! ```nginx
//! location /intern/ {
//!     auth_basic           "closed site";
//!     auth_basic_user_file htpasswd;
//! }
//! ```
//!
//! A line of the file is `name:hash` or `name:hash:comment`; which hashes are known stands in
//! [`crate::shared::password`]. The file belongs to the running server, not to its configuration: it is read by the
//! worker, and again when it changed, so that a new password counts at once.
//!
//! No loop waits for it. Whether the file changed is asked of the kernel's memory first; reading it, and comparing
//! with a slow hash, happens on threads of their own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher as _;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use base::lru::Lru;
use bstr::{BStr, BString, ByteSlice};
use conf::{Arity, Directive, Expression, HTTP_SERVER_LOCATION_EXCEPT, Repeat, Setter, Table};
use http::{Module, Outcome, Phase, Request, Step};
use proto::h1::Method;
use rt::error_log::{Errno, Level};
use rt::file::Metadata;
use rt::pool::Pool;

use crate::shared::password::Hash;

pub(crate) static MODULE: Module = Module {
    name: "auth_basic",
    doc: "Restricts access with HTTP Basic authentication.",
    location: &DIRECTIVES,
    phases: &[(Phase::Access, authenticate)],
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        conf.user_file.is_some() && conf.realm.constant().is_none_or(|realm| realm != "off")
    },
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
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
        set: Setter::Custom(Arity::ONE, Repeat::Once, |conf, line| {
            let path = line.expression(0)?;
            let folder = line
                .level
                .build
                .conf_prefix_for(conf::Access::Read, line.text(0));
            conf.user_file = Some(UserFile { path, folder });
            Ok(())
        }),
    },
]);

/// What a location asks for.
#[derive(Clone, Debug, Default)]
struct Conf {
    realm: Expression,
    user_file: Option<UserFile>,
}

#[derive(Clone, Debug)]
struct UserFile {
    path: Expression,
    /// Where relative paths start.
    folder: PathBuf,
}

/// A password file that is larger is refused: it is kept in memory by each loop. In bytes.
const MAX_FILE: u64 = 64 << 20;

/// Password files that each loop remembers.
const FILES_KEPT: usize = 64;

/// Slow comparisons that may wait before the next ones have to wait for a place in the queue.
const COMPARISONS_QUEUED: usize = 1024;

/// The pool for slow comparisons. The blank keeps it out of the way of names in `thread_pool`.
const POOL: &str = "password hashes";

fn authenticate(request: &mut Request) -> Step<'_> {
    let conf = request.conf::<Conf>();
    let realm = request.value(&conf.realm);
    let Some(file) = &conf.user_file else {
        return Outcome::Declined.into();
    };
    if realm == "off" {
        return Outcome::Declined.into();
    }
    let Some((name, password)) = request.basic_credentials() else {
        request.log(
            Level::Info,
            format_args!("no user/password was provided for basic authentication"),
        );
        return ask(request, realm.as_bstr()).into();
    };
    let path = file
        .folder
        .join(conf::parse::path(&request.value(&file.path)));
    Step::later(async move {
        let users = match users_of(&path).await {
            Ok(users) => users,
            Err(error) => return no_file(request, &path, &error),
        };
        let Some(hash) = users.by_name.get(name.as_bstr()) else {
            if let Some(hash) = users.stand_in(name.as_bstr()) {
                // What comes of it does not matter, only that it takes as long as for a name that is there.
                compare(hash, password.as_bstr()).await;
            }
            request.error(format_args!(
                "user \"{name}\" was not found in \"{}\"",
                path.display()
            ));
            return ask(request, realm.as_bstr());
        };
        if **hash == Hash::Unknown {
            request.log(
                Level::Crit,
                format_args!("user \"{name}\": unknown password hash format"),
            );
            return Outcome::Status(500);
        }
        if compare(hash, password.as_bstr()).await {
            request.flow.user = Some(name);
            return Outcome::Ok;
        }
        request.error(format_args!("user \"{name}\": password mismatch"));
        ask(request, realm.as_bstr())
    })
}

/// Asks the client for a name and a password.
fn ask(request: &mut Request, realm: &BStr) -> Outcome {
    let (name, status): (&[u8], u16) = match request.method {
        Method::Connect => (b"Proxy-Authenticate", 407),
        _ => (b"WWW-Authenticate", 401),
    };
    request.out.fields.push_with(name, |out| {
        out.extend_from_slice(b"Basic realm=\"");
        out.extend_from_slice(realm);
        out.push(b'"');
    });
    Outcome::Status(status)
}

fn no_file(request: &mut Request, path: &Path, error: &io::Error) -> Outcome {
    let (level, status) = match error.kind() {
        io::ErrorKind::NotFound => (Level::Error, 403),
        _ => (Level::Crit, 500),
    };
    request.log(
        level,
        format_args!("open() \"{}\" failed{}", path.display(), Errno(error)),
    );
    Outcome::Status(status)
}

async fn compare(hash: &Arc<Hash>, password: &BStr) -> bool {
    if !hash.is_slow() {
        return hash.fits(password);
    }
    let (hash, password) = (Arc::clone(hash), password.to_owned());
    pool().run(move || hash.fits(&password)).await
}

fn pool() -> Pool {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    rt::pool::get(POOL)
        .unwrap_or_else(|| rt::pool::register(POOL, processors(), COMPARISONS_QUEUED))
}

/// The hashes of a file.
#[derive(Default)]
struct Users {
    by_name: HashMap<BString, Arc<Hash>>,
    /// Those of them that a password may fit, in the order of the file.
    hashes: Vec<Arc<Hash>>,
}

/// Which hash stands in for which name; different with each start, so that no client can tell.
static SECRET: OnceLock<RandomState> = OnceLock::new();

impl Users {
    /// A hash to compare the password of an unknown name with, so that the time of the answer does not tell which names
    /// are there. Where hashes take different times it is always the same one for a name, as it is for known names.
    fn stand_in(&self, name: &BStr) -> Option<&Arc<Hash>> {
        let number = SECRET.get_or_init(RandomState::new).hash_one(name);
        let at = number.checked_rem(self.hashes.len() as u64)?;
        self.hashes.get(at as usize)
    }
}

/// A password file as it was read, and what it was then.
struct Read {
    state: State,
    users: Rc<Users>,
}

/// What changes when a file is written, replaced, or closed to us.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    modified: (i64, u32),
    length: u64,
    identity: (u64, u64),
    rights: (u32, u32, u32),
}

impl State {
    fn of(metadata: &Metadata) -> State {
        State {
            modified: (metadata.mtime, metadata.mtime_nanos),
            length: metadata.len,
            identity: (metadata.dev, metadata.ino),
            rights: (metadata.mode, metadata.uid, metadata.gid),
        }
    }
}

thread_local! {
    static FILES: RefCell<Lru<PathBuf, Read>> = RefCell::new(Lru::new(FILES_KEPT));
}

/// The users of a file as it is now.
async fn users_of(path: &Path) -> io::Result<Rc<Users>> {
    let pool = rt::pool::default_pool();
    let metadata = rt::file::stat(path, &pool).await?;
    let state = State::of(&metadata);
    let known = FILES.with_borrow_mut(|files| {
        let read = files.get(path)?;
        (read.state == state).then(|| Rc::clone(&read.users))
    });
    if let Some(users) = known {
        return Ok(users);
    }
    if metadata.len > MAX_FILE {
        return Err(io::Error::other(
            "a password file must not exceed 64 megabytes",
        ));
    }
    let owned = path.to_owned();
    let users = pool
        .run(move || {
            let text = std::fs::read(&owned);
            text.inspect_err(|error| rt::sandbox::note_refusal(&owned, error))
                .map(|text| parse(&text))
        })
        .await?;
    let users = Rc::new(users);
    let read = Read {
        state,
        users: Rc::clone(&users),
    };
    FILES.with_borrow_mut(|files| files.insert(path.to_owned(), read));
    Ok(users)
}

/// Reads a password file. The first line of a name counts; comments and lines without a colon do not.
fn parse(text: &[u8]) -> Users {
    let mut users = Users::default();
    for line in text.lines() {
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
            let hash = entry.insert(Arc::new(Hash::parse(hash)));
            if !matches!(**hash, Hash::Broken | Hash::Unknown) {
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

    #[test]
    fn the_first_line_of_a_name_counts() {
        let users = parse(b"# bob:{PLAIN}no\r\nbob:{PLAIN}one:comment\r\n\nbob:{PLAIN}two\nbroken\n:x\nlast:{PLAIN}end");
        let fits =
            |name: &str, password: &str| users.by_name[BStr::new(name)].fits(password.as_bytes());
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
        let hash = |name: &str| users.stand_in(BStr::new(name)).map(Arc::as_ptr);
        assert!(hash("mallory").is_some());
        assert_eq!(hash("mallory"), hash("mallory"));
        let different: HashSet<_> = (0..100).map(|n| hash(&format!("name{n}"))).collect();
        assert_eq!(different.len(), 3);
        assert!(parse(b"").stand_in(BStr::new("mallory")).is_none());
    }
}
