//! Words that some crates do not use: a table. What a word stands for is absent there by design, and a place that
//! needs it all the same is listed with its reason.

use crate::rust::words;

use super::Finding;
use super::source::Source;

/// Words, where they must not stand, and what to do instead.
struct Forbidden {
    words: &'static [&'static str],
    /// The crates that the rule is about.
    crates: &'static [&'static str],
    /// Files that may, each with the reason.
    except: &'static [(&'static str, &'static str)],
    remedy: &'static str,
}

/// The crates whose code runs on a loop's thread. `weir` is the start and the master, which may wait.
const ON_A_LOOP: &[&str] = &["net", "cache", "http", "stream", "modules", "lua"];

const BELOW_WEIR: &[&str] = &[
    "base", "conf", "proto", "rt", "host", "net", "cache", "http", "stream", "modules", "lua",
];

const ABOVE_RT: &[&str] = &[
    "base", "conf", "proto", "host", "net", "cache", "http", "stream", "modules", "lua", "weir",
];

const ALL: &[Forbidden] = &[
    Forbidden {
        words: &["tokio", "async_std", "smol", "mio"],
        crates: ABOVE_RT,
        except: &[],
        remedy: "name no runtime: use what `rt` has, or give it to `rt`, so that the loop can be replaced",
    },
    Forbidden {
        words: &[
            "env::var",
            "env::var_os",
            "env::vars",
            "env::vars_os",
            "env::args",
            "env::args_os",
            "env::current_dir",
            "env::set_current_dir",
            "env::temp_dir",
        ],
        crates: BELOW_WEIR,
        except: &[
            (
                "crates/rt/src/system/program.rs",
                "passes the environment on to another program, such as the next binary",
            ),
            (
                "crates/rt/src/system/title.rs",
                "sets the environment of a worker as `env` lines say, and moves it away from the title's place",
            ),
        ],
        remedy: "take it as an argument: only `weir` reads the command line, the environment and the current directory",
    },
    Forbidden {
        words: &[
            "std::fs",
            "thread::sleep",
            "process::Command",
            "std::net::TcpStream",
            "std::net::UdpSocket",
            "std::os::unix::net",
        ],
        crates: ON_A_LOOP,
        except: &[
            (
                "crates/cache/src/open_store.rs",
                "a store is opened while the configuration is prepared; checkpoints are written by its pool",
            ),
            (
                "crates/cache/src/sibling_stores.rs",
                "removes what is left of former worker groups on a thread of the pool",
            ),
            ("crates/cache/src/note_file.rs", "runs on the store's pool"),
            (
                "crates/cache/src/note_format.rs",
                "the note is read when the store is opened",
            ),
            (
                "crates/cache/src/segment.rs",
                "makes and removes the files of segments, on the store's pool",
            ),
            (
                "crates/cache/src/store_core.rs",
                "keeps the file of the directory's lock, and does not read it",
            ),
            (
                "crates/cache/src/survey.rs",
                "looks at a store for the command line; no loop runs",
            ),
            (
                "crates/http/src/upstream/store_response.rs",
                "names a stored file on a thread of the pool",
            ),
            (
                "crates/http/src/variables/target.rs",
                "`$realpath_root` asks the kernel's memory first; a variable cannot wait for a pool",
            ),
            (
                "crates/lua/src/api/library.rs",
                "`require` reads on a thread of the pool",
            ),
            (
                "crates/lua/src/luajit/watchdog.rs",
                "its own thread, which sleeps between looks at the loops",
            ),
            (
                "crates/lua/src/vm.rs",
                "reads a script once, or for each request in development (`lua_code_cache off`)",
            ),
            (
                "crates/modules/src/http/acme/order.rs",
                "reads and removes what it keeps on a thread of the pool",
            ),
            (
                "crates/modules/src/http/acme/state.rs",
                "writes what it keeps on a thread of the pool",
            ),
            (
                "crates/modules/src/shared/user_file.rs",
                "reads a password file on a thread of the pool",
            ),
            (
                "crates/modules/src/http/debug_block.rs",
                "holds its loop up, for tests of what helps then",
            ),
            (
                "crates/modules/src/shared/file_tree.rs",
                "`dav` runs it on a thread of the pool",
            ),
            (
                "crates/modules/src/shared/geoip2.rs",
                "reads a database while configuring, and again on a thread of the pool",
            ),
            (
                "crates/modules/src/shared/keyval/mod.rs",
                "reads the file of a zone while a configuration is accepted, on no loop",
            ),
            (
                "crates/modules/src/shared/upstream_state.rs",
                "the API replaces files on a thread of the pool",
            ),
            (
                "crates/modules/src/shared/log/variable_log.rs",
                "opens logs on the thread that writes them",
            ),
            (
                "crates/modules/src/shared/log/open_files.rs",
                "opens logs on the thread that writes them",
            ),
            (
                "crates/net/src/tls/identity_cache.rs",
                "reads a certificate named by a variable on a thread of the pool",
            ),
            (
                "crates/net/src/resolver/settings.rs",
                "reads resolv.conf and hosts while configuring, and again on a thread of the pool",
            ),
        ],
        remedy: "a loop must not wait for a device: use `rt::file`, or a closure on a pool and a line with the reason in xtask/src/tidy/words.rs",
    },
    Forbidden {
        words: &["mpsc::channel", "unbounded_channel", "unbounded()"],
        crates: &[
            "rt", "host", "net", "cache", "http", "stream", "modules", "lua", "weir",
        ],
        except: &[(
            "crates/weir/src/handover.rs",
            "a loop that hands connections over must not wait; at most as many wait as the loops have connections",
        )],
        remedy: "give the queue a named limit: `sync_channel`, or `rt::sync`",
    },
];

pub(super) fn stay_where_they_belong(sources: &[Source], findings: &mut Vec<Finding>) {
    for rule in ALL {
        check(rule, sources, findings);
    }
}

fn check(rule: &Forbidden, sources: &[Source], findings: &mut Vec<Finding>) {
    let mut excused = Vec::new();
    let of_rule =
        |source: &&Source| source.is_product && rule.crates.contains(&source.rust.crate_name());
    for source in sources.iter().filter(of_rule) {
        let Some((word, line)) = first_use(source, rule.words) else {
            continue;
        };
        if rule.except.iter().any(|(path, _)| *path == source.path) {
            excused.push(source.path.as_str());
        } else {
            findings.push(Finding::new(
                format!("{}:{line}", source.path),
                format!("`{word}`: {}", rule.remedy),
            ));
        }
    }
    for (path, _) in rule.except {
        if !excused.contains(path) {
            let remedy = format!(
                "{path} does without `{}` now: remove its line",
                rule.words[0]
            );
            findings.push(Finding::new("xtask/src/tidy/words.rs", remedy));
        }
    }
}

fn first_use(source: &Source, forbidden: &'static [&'static str]) -> Option<(&'static str, usize)> {
    let code = &source.rust.code;
    forbidden.iter().find_map(|word| {
        let at = words::places(code, word).next()?;
        Some((*word, source.rust.line_at(at)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Forbidden = Forbidden {
        words: &["std::fs", "thread::sleep"],
        crates: &["http"],
        except: &[("crates/http/src/excused.rs", "on a pool")],
        remedy: "use a pool",
    };

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::new(path, (*text).to_owned()))
            .collect();
        let mut findings = Vec::new();
        check(&RULE, &sources, &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_word_is_found_in_code_of_its_crates_only() {
        let found = findings(&[
            (
                "crates/http/src/a.rs",
                "// std::fs\nlet a = \"std::fs\";\nuse std::fs;\n",
            ),
            ("crates/http/src/excused.rs", "use std::fs;\n"),
            ("crates/rt/src/b.rs", "use std::fs;\n"),
            (
                "crates/http/src/c.rs",
                "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n",
            ),
        ]);
        assert_eq!(found, ["crates/http/src/a.rs:3: `std::fs`: use a pool"]);
    }

    #[test]
    fn a_reason_that_nothing_needs_is_told() {
        let found = findings(&[("crates/http/src/excused.rs", "fn a() {}\n")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("remove its line"), "{found:?}");
    }
}
