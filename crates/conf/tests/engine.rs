//! A small engine with `http`, `server` and `location` blocks and two modules: how an engine uses this crate,
//! and what it may rely on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_conf as conf;

use conf::*;

// The engine.

/// What the blocks become.
#[derive(Default)]
struct Engine {
    servers: Vec<Server>,
    /// Locations of the server that is being built.
    locations: Vec<Location>,
}

struct Server {
    confs: BlockConfs,
    locations: Vec<Location>,
}

struct Location {
    path: BString,
    confs: BlockConfs,
}

/// A request, as far as variables of this test need one.
struct Request {
    host: &'static str,
}

const MAIN_GROUP: usize = 0;
const SERVER_GROUP: usize = 1;
const LOCATION_GROUP: usize = 2;

#[derive(Clone, Default)]
struct Nothing;

static MAIN_ROWS: DirectiveTable<Nothing> = DirectiveTable::new(&[Directive {
    name: "http",
    syntax: "{ ... }",
    default: None,
    contexts: MAIN,
    since: "0.1",
    doc: "Everything about HTTP.",
    set: Setter::Deferred(Arity::NONE, |line, _confs| build_http(line)),
}]);

static HTTP_ROWS: DirectiveTable<Nothing> = DirectiveTable::new(&[Directive {
    name: "server",
    syntax: "{ ... }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "A virtual server.",
    set: Setter::Deferred(Arity::NONE, |line, confs| {
        let mut server = confs.child(SERVER_GROUP);
        let nodes = line.node.block.nodes();
        dispatch(
            nodes,
            &mut server,
            Some(confs),
            &mut line.level.inner_block(SERVER),
        );
        let engine = line.level.engine::<Engine>();
        let locations = std::mem::take(&mut engine.locations);
        engine.servers.push(Server {
            confs: server,
            locations,
        });
        Ok(())
    }),
}]);

static LOCATION_ROWS: DirectiveTable<Nothing> = DirectiveTable::new(&[Directive {
    name: "location",
    syntax: "path { ... }",
    default: None,
    contexts: SERVER_LOCATION,
    since: "0.1",
    doc: "What a path gets.",
    set: Setter::Deferred(Arity::ONE, |line, confs| {
        let mut location = confs.child(LOCATION_GROUP);
        let nodes = line.node.block.nodes();
        dispatch(
            nodes,
            &mut location,
            Some(confs),
            &mut line.level.inner_block(LOCATION),
        );
        let path = line.arg(0).text.clone();
        line.level.engine::<Engine>().locations.push(Location {
            path,
            confs: location,
        });
        Ok(())
    }),
}]);

// A module with directives of both levels.

#[derive(Clone, Default)]
struct Names {
    names: Vec<BString>,
}

static NAMES: DirectiveTable<Names> = DirectiveTable::new(&[Directive {
    name: "server_name",
    syntax: "name ...",
    default: None,
    contexts: SERVER,
    since: "0.1",
    doc: "The names of a server.",
    set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
        c.names
            .extend(line.args().iter().map(|word| word.text.clone()));
        Ok(())
    }),
}]);

#[derive(Clone, Default)]
struct Squeeze {
    enable: bool,
    level: i64,
    timeout: Duration,
    buffers: BufferSizes,
    types: Vec<BString>,
    proxied: u32,
    mode: usize,
    root: PathBuf,
    message: Expression,
    target: Option<BString>,
    depth: u32,
}

static SQUEEZE: DirectiveTable<Squeeze> = DirectiveTable::<Squeeze>::new(&[
    row(
        "squeeze",
        "on | off",
        Some("off"),
        Setter::Flag(|c| &mut c.enable),
    ),
    row(
        "squeeze_level",
        "number",
        Some("1"),
        Setter::Number(|c| &mut c.level, 1, 9),
    ),
    row(
        "squeeze_timeout",
        "time",
        Some("1m"),
        Setter::Millis(|c| &mut c.timeout),
    ),
    row(
        "squeeze_buffers",
        "number size",
        Some("8 4k"),
        Setter::Buffers(|c| &mut c.buffers),
    ),
    row(
        "squeeze_types",
        "type ...",
        Some("text/html"),
        Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Fresh(|c| c.types.clear()),
            |c, line| {
                c.types
                    .extend(line.args().iter().map(|word| word.text.clone()));
                Ok(())
            },
        ),
    ),
    row(
        "squeeze_proxied",
        "off | any | auth",
        Some("off"),
        Setter::Bits(&["off", "any", "auth"], |c| &mut c.proxied),
    ),
    row(
        "squeeze_mode",
        "fast | small",
        Some("fast"),
        Setter::Word(&["fast", "small"], |c, i| c.mode = i),
    ),
    row(
        "root",
        "path",
        Some("html"),
        Setter::Path(conf::PathUse::Opened, |c| &mut c.root),
    ),
    row("message", "text", None, Setter::Value(|c| &mut c.message)),
    row(
        "target",
        "name",
        None,
        Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.target = Some(line.arg(0).text.clone());
            Ok(())
        }),
    ),
    row(
        "words",
        "{ ... }",
        None,
        Setter::Block(Arity::NONE, RepeatRule::Once, |c, line| {
            for entry in line.entries() {
                c.types.push(entry.name.text.clone());
            }
            Ok(())
        }),
    ),
    row(
        "old_squeeze",
        "on | off",
        None,
        Setter::Ignored(Arity::ONE, "there is nothing to choose any more"),
    ),
])
.finish(|c, parent, level| {
    c.depth = parent.map_or(0, |parent| parent.depth + 1);
    if c.level > 5 && level.seen_directive("squeeze_level").is_some() && !c.enable {
        level.report(Diagnostic::warning(
            "squeeze_level without squeeze",
            level.seen_directive("squeeze_level"),
        ));
    }
    Ok(())
})
.inherit(
    |parent| Squeeze {
        target: None,
        ..parent.clone()
    },
    |parent| parent.target.is_none(),
);

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    set: Setter<Squeeze>,
) -> Directive<Squeeze> {
    Directive {
        name,
        syntax,
        default,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "A test row.",
        set,
    }
}

static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "host",
        |request, out| {
            out.extend_from_slice(request.host.as_bytes());
            true
        },
        "The host.",
    ),
    Variable::prefix(
        "arg_",
        |_, name, out| {
            out.extend_from_slice(name.as_bytes());
            true
        },
        "An argument.",
    ),
];

/// What the http block hands to the caller of the build.
#[derive(Default)]
struct Built {
    servers: Vec<Server>,
    http: Option<BlockConfs>,
}

fn build_http(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    if line.is_repeated() {
        return Err(line.directive_error("is duplicate"));
    }
    let mut names = VariableRegistry::<Request>::new();
    names.add(VARIABLES);
    let mut engine = Engine::default();
    let groups: Vec<TableSet> = vec![
        vec![&HTTP_ROWS],
        vec![&NAMES],
        vec![&LOCATION_ROWS, &SQUEEZE],
    ];
    let mut confs = BlockConfs::new(groups);
    let mut level = BlockContext::new(line.level.build, &mut names, &mut engine, HTTP);
    dispatch(line.node.block.nodes(), &mut confs, None, &mut level);
    match names.finish() {
        Ok(_variables) => {}
        Err(errors) => errors
            .into_iter()
            .for_each(|error| line.level.report(error)),
    }
    let built = line.shared::<Built>();
    built.servers = engine.servers;
    built.http = Some(confs);
    Ok(())
}

fn build(text: &str) -> ConfigurationBuild {
    let mut files = FileSnapshot::default();
    files.insert("/etc/weir/nginx.conf", text);
    let (tree, diagnostics) = parse_tolerant(Path::new("/etc/weir/nginx.conf"), &mut files, None);
    let mut build = ConfigurationBuild::new(
        "/usr/local".into(),
        "/etc/weir".into(),
        Box::new(files),
        tree.sources,
    );
    build.tables = vec![&MAIN_ROWS, &HTTP_ROWS, &LOCATION_ROWS, &NAMES, &SQUEEZE];
    build.diagnostics = diagnostics;
    let mut names = NoVariables::default();
    let mut no_engine = ();
    let mut level = BlockContext::new(&mut build, &mut names, &mut no_engine, MAIN);
    dispatch(
        &tree.nodes,
        &mut BlockConfs::new(vec![vec![&MAIN_ROWS]]),
        None,
        &mut level,
    );
    build
}

/// A build that must succeed.
fn built(text: &str) -> Built {
    let mut build = build(text);
    assert_eq!(build.render(false), "");
    build.shared.take().expect("http was built")
}

/// All messages of a build, as shown.
fn messages(text: &str) -> String {
    build(text).render(false)
}

/// The first lines only, without program and place.
fn first_lines(text: &str) -> Vec<String> {
    let mut build = build(text);
    build.render(false);
    build
        .diagnostics
        .iter()
        .map(|diagnostic| diagnostic.message.clone())
        .collect()
}

fn squeeze(confs: &BlockConfs) -> &Squeeze {
    confs.get().expect("a location has it")
}

#[test]
fn defaults_go_through_the_setters() {
    let built = built("http { }");
    let conf = built.http.as_ref().map(squeeze).unwrap();
    assert!(!conf.enable);
    assert_eq!(conf.level, 1);
    assert_eq!(conf.timeout, Duration::from_secs(60));
    assert_eq!(
        conf.buffers,
        BufferSizes {
            count: 8,
            size: 4096
        }
    );
    assert_eq!(conf.types, ["text/html"]);
    assert_eq!(conf.proxied, 1);
    assert_eq!(conf.root, Path::new("/usr/local/html"));
}

#[test]
fn children_inherit_what_stands_anywhere_in_the_parent() {
    let built = built(
        "http { server { location /a { squeeze off; location /a/b { } } squeeze_level 3; }
                squeeze on; squeeze_mode SMALL; target t; root /srv; }",
    );
    let server = &built.servers[0];
    let conf = squeeze(&server.confs);
    assert!(conf.enable, "stands after the server");
    assert_eq!((conf.level, conf.mode, conf.depth), (3, 1, 1));
    assert_eq!(conf.target, None, "not inherited");
    let paths: Vec<_> = server
        .locations
        .iter()
        .map(|location| location.path.to_string())
        .collect();
    assert_eq!(
        paths,
        ["/a/b", "/a"],
        "this engine pushes the inner one first"
    );
    let inner = squeeze(&server.locations[0].confs);
    assert!(!inner.enable);
    assert_eq!((inner.level, inner.depth), (3, 3));
    assert_eq!(inner.root, Path::new("/srv"));
    assert!(
        server.locations[0].confs.get::<Names>().is_none(),
        "the group of servers is closed in a location"
    );
}

#[test]
fn a_list_that_is_set_again_replaces_the_inherited_one() {
    let built = built(
        "http { squeeze_types a; squeeze_types b c;
                server { }
                server { squeeze_types d; squeeze_types e; } }",
    );
    assert_eq!(squeeze(&built.servers[0].confs).types, ["a", "b", "c"]);
    assert_eq!(squeeze(&built.servers[1].confs).types, ["d", "e"]);
}

#[test]
fn bits_add_up_within_a_block_only() {
    let built = built(
        "http { squeeze_proxied any; squeeze_proxied auth; server { squeeze_proxied auth; } }",
    );
    assert_eq!(squeeze(built.http.as_ref().unwrap()).proxied, 0b110);
    assert_eq!(squeeze(&built.servers[0].confs).proxied, 0b100);
}

#[test]
fn blocks_of_data() {
    let built = built("http { words { one 1; two 2; } old_squeeze on; }");
    assert_eq!(
        squeeze(built.http.as_ref().unwrap()).types,
        ["text/html", "one", "two"]
    );
    assert_eq!(
        first_lines("http { words { one 1; two { } three 3; } }"),
        ["unexpected \"{\""]
    );
}

#[test]
fn values_know_the_variables_of_their_engine() {
    let built = built("http { message \"$host ${ARG_x}!\"; }");
    let message = &squeeze(built.http.as_ref().unwrap()).message;
    assert_eq!(message.constant(), None);
    assert_eq!(message.parts().count(), 4);
}

#[test]
fn every_error_is_reported_in_file_order() {
    let text = "http {
    server {
        location / { squeeze_level 77; }
        server_name;
    }
    squeeze maybe;
    squeeze on;
    squeeze off;
    root /a {
    }
    words;
    location / { }
    sqeeze on;
    gzip on;
    squeeze_timeout 1y;
    message $host$nothing;
}
http { }
";
    assert_eq!(
        first_lines(text),
        [
            "value must be between 1 and 9",
            "invalid number of arguments in \"server_name\" directive",
            "invalid value \"maybe\" in \"squeeze\" directive, it must be \"on\" or \"off\"",
            "\"squeeze\" directive is duplicate",
            "\"squeeze\" directive is duplicate",
            "directive \"root\" is not terminated by \";\"",
            "directive \"words\" has no opening \"{\"",
            "\"location\" directive is not allowed here",
            "unknown directive \"sqeeze\"",
            "unknown directive \"gzip\"",
            "\"squeeze_timeout\" directive invalid value",
            "\"http\" directive is duplicate",
            "unknown \"nothing\" variable",
        ]
    );
}

#[test]
fn messages_show_the_line() {
    assert_eq!(
        messages("http {\n\tserver {\n\t\tsqeeze on;\n\t}\n}\n"),
        "\
weir: [emerg] unknown directive \"sqeeze\" in /etc/weir/nginx.conf:3
  |
3 |         sqeeze on;
  |         ^^^^^^
  = did you mean \"squeeze\"?
"
    );
    // A key that stands in the file itself is not shown: what is printed may end in a log.
    assert_eq!(
        messages("http { sqeeze 'data:AbC=' data:DeF; }\n"),
        "\
weir: [emerg] unknown directive \"sqeeze\" in /etc/weir/nginx.conf:1
  |
1 | http { sqeeze 'data:…' data:…; }
  |        ^^^^^^
  = did you mean \"squeeze\"?
"
    );
    assert_eq!(
        messages("http {\n    squeeze_level\n        10;\n}\n"),
        "\
weir: [emerg] value must be between 1 and 9 in /etc/weir/nginx.conf:3
  |
3 |         10;
  |         ^^
  = syntax: squeeze_level number;
"
    );
    assert_eq!(
        messages("http { squeeze_mode\nslow\n; }"),
        "\
weir: [emerg] invalid value \"slow\" in /etc/weir/nginx.conf:3
 --> /etc/weir/nginx.conf:2
  |
2 | slow
  | ^^^^
  = it must be one of: fast, small
"
    );
    assert_eq!(
        messages("http { message 'é日 $hots'; }"),
        "\
weir: [emerg] unknown \"hots\" variable
 --> /etc/weir/nginx.conf:1
  |
1 | http { message 'é日 $hots'; }
  |                     ^^^^^
  = did you mean \"$host\"?
"
    );
    assert_eq!(
        messages("http { gzip on; }"),
        "\
weir: [emerg] unknown directive \"gzip\" in /etc/weir/nginx.conf:1
  |
1 | http { gzip on; }
  |        ^^^^
  = nginx 1.31 has it; Weir does not support it yet
  = syntax: gzip on | off;
"
    );
    assert_eq!(
        messages("server { }"),
        "\
weir: [emerg] \"server\" directive is not allowed here in /etc/weir/nginx.conf:1
  |
1 | server { }
  | ^^^^^^
  = allowed in: http
"
    );
}

#[test]
fn warnings_do_not_refuse_a_configuration() {
    let mut build = build("http { squeeze_level 9; squeeze_proxied any any; }");
    assert!(!build.has_errors());
    assert_eq!(
        build.render(false),
        "\
weir: [warn] squeeze_level without squeeze in /etc/weir/nginx.conf:1
  |
1 | http { squeeze_level 9; squeeze_proxied any any; }
  |        ^^^^^^^^^^^^^^^^
weir: [warn] duplicate value \"any\" in /etc/weir/nginx.conf:1
  |
1 | http { squeeze_level 9; squeeze_proxied any any; }
  |                                             ^^^
"
    );
}

#[test]
fn syntax_errors_and_later_ones_come_together() {
    assert_eq!(
        first_lines("http {\n squeeze on\n}\nhttp { bogus_name 1; };\nfoo { \n"),
        [
            "unexpected \"}\"",
            "\"http\" directive is duplicate",
            "unexpected \";\"",
            "unknown directive \"foo\"",
            "unexpected end of file, expecting \"}\"",
        ]
    );
}

#[test]
fn groups_can_be_taken_out() {
    let mut built = built("http { server { server_name a b; } }");
    let server = &mut built.servers[0];
    let confs = server.confs.take_group(SERVER_GROUP);
    assert_eq!(block_confs::downcast::<Names>(&*confs[0]).names, ["a", "b"]);
    assert!(server.confs.take_group(SERVER_GROUP).is_empty());
    assert!(
        server.confs.take_group(MAIN_GROUP).is_empty(),
        "closed in a server"
    );
}

#[test]
fn messages_have_a_bound() {
    let shown = messages(&format!("http {{ {} }}", "bogus 1;\n".repeat(1000)));
    assert_eq!(
        shown.matches("unknown directive").count(),
        conf::block_context::MAX_SHOWN
    );
    assert!(shown.ends_with("weir: 800 more messages are not shown\n"));
}
