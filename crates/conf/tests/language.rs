//! The language itself: words, blocks, includes, Lua, and the messages about text that is none.

use std::path::Path;

use weir_conf as conf;

use conf::tree::MAX_DEPTH;
use conf::*;

const MAIN_FILE: &str = "/etc/nginx.conf";

/// Reads files that exist only here; the first one is the main file.
fn read(files: &[(&str, &str)], globals: Option<&str>) -> (ConfigurationTree, Vec<Diagnostic>) {
    let mut snapshot = FileSnapshot::default();
    for (path, text) in files {
        snapshot.insert(path, *text);
    }
    parse_tolerant(Path::new(files[0].0), &mut snapshot, globals)
}

/// The tree of a text without mistakes, written with a `|` between words: `a|b c; x{y;}`.
fn shape(text: &str) -> String {
    let (tree, errors) = read(&[(MAIN_FILE, text)], None);
    assert_eq!(errors, [], "{text}");
    tree.nodes.iter().map(shape_of).collect()
}

fn shape_of(node: &DirectiveNode) -> String {
    let mut out = node.name.text.to_string();
    for word in &node.args {
        out += &format!("|{}", word.text);
    }
    match &node.block {
        BlockContent::None => out + ";",
        content @ (BlockContent::Nodes(_) | BlockContent::Long(_)) => format!(
            "{out}{{{}}}",
            content.nodes().iter().map(shape_of).collect::<String>()
        ),
        BlockContent::Known(number) => format!("{out}[{number}]"),
        BlockContent::Raw(word) => format!("{out}<{}>", word.text),
    }
}

/// The first lines of all messages about these files.
fn complaints_of(files: &[(&str, &str)], globals: Option<&str>) -> Vec<String> {
    let (tree, errors) = read(files, globals);
    errors
        .iter()
        .map(|error| diagnostic::first_line(error, &tree.sources))
        .collect()
}

/// As [`complaints_of`] for one file, which is left out of the messages: `WHAT:LINE`.
fn complaints(text: &str) -> Vec<String> {
    let complaints = complaints_of(&[(MAIN_FILE, text)], None);
    complaints
        .iter()
        .map(|line| line.replace(" in /etc/nginx.conf", ""))
        .collect()
}

#[test]
fn words() {
    for (text, expected) in [
        ("", ""),
        ("# only a comment", ""),
        ("a;", "a;"),
        ("a b  c\t\r\n;", "a|b|c;"),
        ("a;b;", "a;b;"),
        ("a {}", "a{}"),
        ("a b{c d;}e;", "a|b{c|d;}e;"),
        ("a \"b c\" 'd e';", "a|b c|d e;"),
        ("a \"\" '';", "a||;"),
        ("a \"it's\" 'say \"x\"';", "a|it's|say \"x\";"),
        ("a b\"c d\"e;", "a|b\"c|d\"e;"),
        ("a b#c; # comment; {", "a|b#c;"),
        ("a \"#b\";", "a|#b;"),
        ("a # b\n c;", "a|c;"),
        ("a ${b};", "a|${b};"),
        ("a x${b}y{}", "a|x${b}y{}"),
        ("a $b{}", "a|$b{}"),
        ("a b}c;", "a|b}c;"),
        ("a \"b;{}\";", "a|b;{};"),
        ("if ($a = \"b\") {}", "if|($a|=|b|){}"),
        ("a \"b\";c;", "a|b;c;"),
        ("a \"b\"{}", "a|b{}"),
        ("location ~ \\.php$ {}", "location|~|\\.php${}"),
        // An unquoted brace in a pattern opens a block, as it does in nginx.
        ("a ~ ^/x{2 ;}", "a|~|^/x{2;}"),
    ] {
        assert_eq!(shape(text), expected, "{text}");
    }
}

/// A block with more lines than are kept as nodes is the same for everybody, whatever follows the lines.
#[test]
fn long_blocks() {
    let rows: String = (0..2000)
        .map(|row| format!("k{row} \"v {row}\";\n"))
        .collect();
    let expected: String = (0..2000).map(|row| format!("k{row}|v {row};")).collect();
    let text = format!("a {{ b; {rows} include x; \\\\c d; }} e;");
    let files = [
        (MAIN_FILE, text.as_str()),
        ("/etc/x", "x y; include z;"),
        ("/etc/z", &rows),
    ];
    let (tree, errors) = read(&files, None);
    assert_eq!(errors, []);
    let block = &tree.nodes[0].block;
    assert!(matches!(block, BlockContent::Long(_)));
    let all = format!("b;{expected}x|y;{expected}\\c|d;");
    let lines: String = block.lines().map(|line| shape_of(&line)).collect();
    assert_eq!(lines, all);
    assert_eq!(block.lines().count_all(), 4003);
    assert_eq!(block.nodes().iter().map(shape_of).collect::<String>(), all);
    assert_eq!(tree.nodes[1].name.text, "e");
    // With a block among them the lines are nodes like all others.
    let text = format!("a {{ {rows} b {{ c; }} {rows} }}");
    assert_eq!(shape(&text), format!("a{{{expected}b{{c;}}{expected}}}"));
    // A place in the text is found from such a line too.
    let row = tree.nodes[0].block.lines().nth(5).expect("there are more");
    assert_eq!(
        tree.sources.place(row.head).as_deref(),
        Some("/etc/nginx.conf:5")
    );
}

#[test]
fn escapes() {
    for (text, expected) in [
        (r#"a "b\"c";"#, r#"a|b"c;"#),
        (r"a 'b\'c';", "a|b'c;"),
        (r"a b\\c;", r"a|b\c;"),
        (r"a b\;c;", r"a|b\;c;"),
        (r"a b\ c;", r"a|b\ c;"),
        (r"a b\{c;", r"a|b\{c;"),
        (r"a b\tc\rd\ne;", "a|b\tc\rd\ne;"),
        (r"a \d+\.x;", r"a|\d+\.x;"),
        (r"a \#b;", r"a|\#b;"),
        (r#"a \"b;"#, r#"a|"b;"#),
        (r#"a "\\";"#, r"a|\;"),
        (
            r"a b\
;", "a|b\\\n;",
        ),
    ] {
        assert_eq!(shape(text), expected, "{text}");
    }
}

#[test]
fn places() {
    let text = "worker x\n  'y z' ;\nhttp {\n  a;\n}\n";
    let (tree, _) = read(&[(MAIN_FILE, text)], None);
    let text_of = |span: Span| {
        tree.sources
            .text(span)
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    let [worker, http] = &tree.nodes[..] else {
        panic!("two directives")
    };
    assert_eq!(text_of(worker.span), "worker x\n  'y z' ;");
    assert_eq!(text_of(worker.args[1].span), "y z");
    assert!(worker.args[1].quoted);
    assert_eq!(text_of(http.head), "http {");
    assert_eq!(text_of(http.span), "http {\n  a;\n}");
    assert_eq!(tree.sources.line_column(worker.args[1].span), Some((2, 4)));
    assert_eq!(
        tree.sources.place(http.span.last_byte()).as_deref(),
        Some("/etc/nginx.conf:5")
    );
}

#[test]
fn mistakes_have_the_messages_and_lines_of_nginx() {
    for (text, expected) in [
        (
            "a",
            &["unexpected end of file, expecting \";\" or \"}\":1"][..],
        ),
        (
            "a\n\n",
            &["unexpected end of file, expecting \";\" or \"}\":3"],
        ),
        (
            "a \"b",
            &["unexpected end of file, expecting \";\" or \"}\":1"],
        ),
        ("a {", &["unexpected end of file, expecting \"}\":1"]),
        (
            "a {\n b {\n}\n",
            &["unexpected end of file, expecting \"}\":4"],
        ),
        ("}", &["unexpected \"}\":1"]),
        ("a }", &["unexpected \"}\":1", "unexpected \"}\":1"]),
        (";", &["unexpected \";\":1"]),
        ("a {};", &["unexpected \";\":1"]),
        ("{}", &["unexpected \"{\":1"]),
        ("a \"b\"c;", &["unexpected \"c\":1"]),
        (
            "a 'b'};",
            &[
                "unexpected \"}\":1",
                "unexpected \"}\":1",
                "unexpected \";\":1",
            ],
        ),
        (
            "a {\n b\n}\nc {\n d }\n",
            &["unexpected \"}\":3", "unexpected \"}\":5"],
        ),
        (
            "a {\n b \"x\n}\n",
            &["unexpected end of file, expecting \";\" or \"}\":4"],
        ),
    ] {
        assert_eq!(complaints(text), expected, "{text:?}");
    }
}

#[test]
fn what_follows_a_mistake_is_still_read() {
    let (tree, errors) = read(&[(MAIN_FILE, "a { b \n} c; ; d \"e\"f; g { } }")], None);
    assert_eq!(errors.len(), 4);
    assert_eq!(
        tree.nodes.iter().map(shape_of).collect::<String>(),
        "a{b;}c;d|e|f;g{}"
    );
}

#[test]
fn words_have_a_bound() {
    let word = |length: usize| "x".repeat(length);
    // The bound counts only if the file goes on after it: nginx meets it when it wants to read more.
    assert_eq!(
        complaints(&format!("a {};", word(4095))),
        Vec::<String>::new()
    );
    let complaint = ["too long parameter \"xxxxxxxxxx...\" started:2"];
    assert_eq!(complaints(&format!("a\n {}\n;", word(4096))), complaint);
    let complaint = ["too long parameter, probably missing terminating \"\"\" character:2"];
    assert_eq!(complaints(&format!("a\n \"{}\n\";", word(4096))), complaint);
    let complaint = ["too long parameter, probably missing terminating \"'\" character:1"];
    assert_eq!(
        complaints(&format!("a {{ b '{}", "c;\n".repeat(2000))),
        complaint
    );
    let (tree, errors) = read(&[(MAIN_FILE, "")], Some(&format!("a {};", word(10_000))));
    assert_eq!(
        (tree.nodes.len(), errors.len()),
        (1, 0),
        "not on the command line"
    );
}

#[test]
fn blocks_have_a_bound() {
    let nested = |depth: usize| format!("{}{}", "a {".repeat(depth), "}".repeat(depth));
    assert_eq!(complaints(&nested(MAX_DEPTH)), Vec::<String>::new());
    let message = format!("blocks are nested more than {MAX_DEPTH} levels deep:1");
    assert_eq!(complaints(&nested(MAX_DEPTH + 1)), [message]);
    assert_eq!(
        complaints(&"a {".repeat(100_000)).len(),
        1,
        "and the stack holds"
    );
}

#[test]
fn includes_stand_for_their_text() {
    let files = [
        (
            MAIN_FILE,
            "a; include sub/one.conf; http { include \"many*.conf\"; types { include types; } }",
        ),
        ("/etc/sub/one.conf", "b;\ninclude sub/two.conf;\n"),
        ("/etc/sub/two.conf", "c;"),
        ("/etc/many2.conf", "e; include types;"),
        ("/etc/many1.conf", "d;"),
        ("/etc/types", "text/html html htm;"),
    ];
    let (tree, errors) = read(&files, None);
    assert_eq!(errors, []);
    let shape: String = tree.nodes.iter().map(shape_of).collect();
    assert_eq!(
        shape,
        "a;b;c;http{d;e;text/html|html|htm;types{text/html|html|htm;}}"
    );
    let unique: Vec<_> = tree
        .sources
        .unique_files()
        .iter()
        .map(|source| source.path.display().to_string())
        .collect();
    assert_eq!(
        unique,
        [
            MAIN_FILE,
            "/etc/sub/one.conf",
            "/etc/sub/two.conf",
            "/etc/many1.conf",
            "/etc/many2.conf",
            "/etc/types"
        ]
    );
}

#[test]
fn includes_that_fail() {
    let complaints = |main: &str| {
        complaints_of(
            &[
                (MAIN_FILE, main),
                ("/etc/loop", "include loop;"),
                ("/etc/open", "x {"),
                ("/etc/close", "\n}"),
            ],
            None,
        )
    };
    assert_eq!(
        complaints("\ninclude none;"),
        ["open() \"/etc/none\" failed (2: No such file or directory) in /etc/nginx.conf:2"]
    );
    assert_eq!(complaints("include none*;"), Vec::<String>::new());
    assert_eq!(
        complaints("include loop;"),
        ["\"/etc/loop\" includes itself in /etc/loop:1"]
    );
    assert_eq!(
        complaints("include nginx.conf;"),
        ["\"/etc/nginx.conf\" includes itself in /etc/nginx.conf:1"]
    );
    assert_eq!(
        complaints("include;"),
        ["invalid number of arguments in \"include\" directive in /etc/nginx.conf:1"]
    );
    assert_eq!(complaints("include a b;").len(), 1);
    assert_eq!(
        complaints("include a {}"),
        ["directive \"include\" is not terminated by \";\" in /etc/nginx.conf:1"]
    );
    assert_eq!(
        complaints("a { include close; }"),
        ["unexpected \"}\" in /etc/close:2"]
    );
    assert_eq!(
        complaints("include open; }").len(),
        2,
        "an included file ends its own blocks"
    );
}

#[test]
fn a_missing_main_file_is_named_without_a_place() {
    let (tree, errors) = parse_tolerant(Path::new("/none"), &mut FileSnapshot::default(), None);
    assert_eq!(errors.len(), 1);
    let message = render_diagnostic(&errors[0], &tree.sources, "weir", false);
    assert_eq!(
        message,
        "weir: [emerg] open() \"/none\" failed (2: No such file or directory)\n"
    );
}

#[test]
fn directives_of_the_command_line_come_first() {
    let files = [(MAIN_FILE, "c;")];
    let (tree, errors) = read(&files, Some("a; b x;"));
    assert_eq!(errors, []);
    assert_eq!(
        tree.nodes.iter().map(shape_of).collect::<String>(),
        "a;b|x;c;"
    );
    let complaints = |globals: &str| complaints_of(&files, Some(globals));
    assert_eq!(
        complaints("a"),
        ["unexpected end of parameter, expecting \";\" in command line"]
    );
    assert_eq!(
        complaints("a {}"),
        ["block directives are not supported in -g option in command line"]
    );
    assert_eq!(complaints("}"), ["unexpected \"}\" in command line"]);
}

#[test]
fn lua_blocks_are_left_alone() {
    let text =
        "location / { content_by_lua_block { ngx.say(\"} ;\") -- }\n if x then y = {} end } a; }";
    assert_eq!(
        shape(text),
        "location|/{content_by_lua_block< ngx.say(\"} ;\") -- }\n if x then y = {} end >a;}"
    );
    assert_eq!(
        shape("set_by_lua_block $x {return 1}b;"),
        "set_by_lua_block|$x<return 1>b;"
    );
    assert_eq!(shape("a_by_lua_block_not { x; }"), "a_by_lua_block_not{x;}");
    assert_eq!(
        complaints("\nx_by_lua_block { a = { }\n"),
        ["unexpected end of file, expecting \"}\":2"]
    );
    let long_bracket = complaints("x_by_lua_block { [[ }\n");
    assert_eq!(
        long_bracket,
        ["unexpected end of file, expecting a closing long bracket:1"]
    );
}

#[test]
fn messages_come_in_the_order_of_reading() {
    let files = [
        (MAIN_FILE, "; include a; ; include b;"),
        ("/etc/a", ";\ninclude b;\n;"),
        ("/etc/b", ";"),
    ];
    assert_eq!(
        complaints_of(&files, Some(";")),
        [
            "unexpected \";\" in command line",
            "unexpected \";\" in /etc/nginx.conf:1",
            "unexpected \";\" in /etc/a:1",
            "unexpected \";\" in /etc/b:1",
            "unexpected \";\" in /etc/a:3",
            "unexpected \";\" in /etc/nginx.conf:1",
            "unexpected \";\" in /etc/b:1",
        ]
    );
}

/// Every text of up to five signs that mean something: no panic, and every span lies within the text.
#[test]
fn every_short_text() {
    let signs = ["a", " ", ";", "{", "}", "\"", "\\", "$", "#", "\n"];
    let mut text = String::new();
    for length in 0..=5u32 {
        for number in 0..10usize.pow(length) {
            text.clear();
            (0..length).for_each(|i| text += signs[number / 10usize.pow(i) % 10]);
            let (tree, errors) = read(&[(MAIN_FILE, &text)], None);
            for error in &errors {
                let span = error.span.expect("a mistake has a place");
                assert!(
                    span.start <= span.end && span.end as usize <= text.len(),
                    "{text:?} {error:?}"
                );
            }
            for node in &tree.nodes {
                assert!(node.head.end <= node.span.end, "{text:?}");
                assert!(tree.sources.text(node.span).is_some(), "{text:?}");
            }
        }
    }
}

#[test]
fn carets_count_columns() {
    let shown = |text: &str| {
        let (tree, errors) = read(&[(MAIN_FILE, text)], None);
        render_diagnostic(&errors[0], &tree.sources, "weir", false)
            .lines()
            .skip(2)
            .take(2)
            .map(|line| line.to_owned() + "\n")
            .collect::<String>()
    };
    assert_eq!(
        shown("\té \"日本\"x;"),
        "1 |     é \"日本\"x;\n  |             ^\n"
    );
    assert_eq!(shown("a \"\u{7}\"x;"), "1 | a \"\u{fffd}\"x;\n  |      ^\n");
    let long = format!("a \"{}\"x {};", "y".repeat(300), "z".repeat(300));
    let shown_long = shown(&long);
    let lines: Vec<_> = shown_long.lines().collect();
    assert!(
        lines[0].chars().count() < 100,
        "a long line is cut: {}",
        lines[0]
    );
    let caret = lines[1].find('^').expect("a caret");
    assert_eq!(
        lines[0].chars().nth(caret),
        Some('x'),
        "and the caret still fits"
    );
}

#[test]
fn colours_change_nothing_else() {
    let (tree, errors) = read(&[(MAIN_FILE, "a \"b\"c;")], None);
    let coloured = render_diagnostic(&errors[0], &tree.sources, "weir", true);
    assert!(coloured.contains("\u{1b}["));
    let mut plain = String::new();
    let mut rest = &*coloured;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain += before;
        rest = after.split_once('m').expect("an escape ends").1;
    }
    plain += rest;
    assert_eq!(
        plain,
        render_diagnostic(&errors[0], &tree.sources, "weir", false)
    );
}

#[test]
fn a_text_that_is_no_configuration_is_not_read_to_its_end() {
    assert_eq!(
        complaints(&";\n".repeat(100_000)).len(),
        conf::tree::MAX_ERRORS
    );
}
