//! `weir lsp`, driven by a client that sends what editors send.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use weir_tests::{Site, server_path, skip_on_oracle, whole};

/// An editor.
struct Editor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next: u32,
}

impl Editor {
    fn start(site: &Site) -> Editor {
        let mut child = Command::new(server_path())
            .arg("lsp")
            .current_dir(site.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut editor = Editor {
            child,
            input,
            output,
            next: 0,
        };
        let answer = editor.ask("initialize", r#"{"capabilities":{}}"#);
        assert!(answer.contains("\"hoverProvider\":true"), "{answer}");
        editor.tell("initialized", "{}");
        editor
    }

    fn send(&mut self, body: &str) {
        write!(self.input, "Content-Length: {}\r\n\r\n{body}", body.len()).expect("it reads");
        self.input.flush().expect("it reads");
    }

    fn tell(&mut self, method: &str, params: &str) {
        self.send(&format!(
            r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#
        ));
    }

    /// The next message.
    fn hear(&mut self) -> String {
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).expect("it answers");
            assert!(!line.is_empty(), "it has ended");
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().expect("a number");
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).expect("it answers");
        String::from_utf8(body).expect("JSON is UTF-8")
    }

    fn ask(&mut self, method: &str, params: &str) -> String {
        self.next += 1;
        let id = self.next;
        self.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        ));
        let answer = self.hear();
        assert!(answer.contains(&format!("\"id\":{id}")), "{answer}");
        answer
    }

    /// Opens a file; the message about its diagnostics.
    fn open(&mut self, uri: &str, text: &str) -> String {
        let text = text
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        self.tell(
            "textDocument/didOpen",
            &format!(r#"{{"textDocument":{{"uri":"{uri}","languageId":"nginx","version":1,"text":"{text}"}}}}"#),
        );
        self.diagnostics(uri)
    }

    /// The next message about this file; others are about files that it includes.
    fn diagnostics(&mut self, uri: &str) -> String {
        loop {
            let heard = self.hear();
            if heard.contains(&format!("\"uri\":\"{uri}\"")) {
                return heard;
            }
        }
    }

    fn at(&mut self, what: &str, uri: &str, line: u32, character: u32) -> String {
        self.ask(
            &format!("textDocument/{what}"),
            &format!(
                r#"{{"textDocument":{{"uri":"{uri}"}},"position":{{"line":{line},"character":{character}}}}}"#
            ),
        )
    }

    fn end(mut self) {
        self.ask("shutdown", "null");
        self.tell("exit", "null");
        assert!(self.child.wait().expect("it ends").success());
    }
}

fn uri(site: &Site, file: &str) -> String {
    format!("file://{}", site.path(file).display())
}

const TEXT: &str = "user root;
events {}
http {
    map $uri $kind { default a; }
    upstream back { server 127.0.0.1:9; }
    server {
        listen 127.0.0.1:8080;
        include part/*.conf;
        location / { try_files $uri @other; }
        location @other { proxy_pass http://back; add_header X-\u{1f600} $kind; }
    }
}
";

#[test]
fn messages_of_the_test_come_while_typing() {
    if skip_on_oracle("nginx is no language server") {
        return;
    }
    let site = whole("")
        .file("nginx.conf", TEXT)
        .file("part/a.conf", "location /a { rot x; }\n");
    let (main, part) = (uri(&site, "nginx.conf"), uri(&site, "part/a.conf"));
    let mut editor = Editor::start(&site);
    // An error in an included file is shown in that file.
    let shown = editor.open(&part, "location /a { rot x; }\n");
    assert!(shown.contains("unknown directive \\\"rot\\\""), "{shown}");
    assert!(
        shown.contains("\"start\":{\"character\":14,\"line\":0}"),
        "{shown}"
    );
    let shown = editor.open(&main, TEXT);
    assert!(shown.contains("\"diagnostics\":[]"), "{shown}");
    // The text in the editor counts, not the file on the disk.
    editor.tell(
        "textDocument/didChange",
        &format!(
            r#"{{"textDocument":{{"uri":"{part}","version":2}},"contentChanges":[{{"text":"location /a {{ root x; }}\n"}}]}}"#
        ),
    );
    let shown = editor.diagnostics(&part);
    assert!(shown.contains("\"diagnostics\":[]"), "{shown}");
    editor.end();
}

#[test]
fn completion_help_definitions_and_layout() {
    if skip_on_oracle("nginx is no language server") {
        return;
    }
    let site = whole("")
        .file("nginx.conf", TEXT)
        .file("part/a.conf", "# nothing\n");
    let main = uri(&site, "nginx.conf");
    let mut editor = Editor::start(&site);
    editor.open(&main, TEXT);

    let help = editor.at("hover", &main, 6, 10);
    assert!(help.contains("Syntax") || help.contains("listen"), "{help}");
    let help = editor.at("hover", &main, 8, 32);
    assert!(help.contains("$uri"), "{help}");
    assert!(editor.at("hover", &main, 1, 9).contains("\"result\":null"));

    let is_at = |answer: &str, line: u32, character: u32| {
        let place = format!("\"start\":{{\"character\":{character},\"line\":{line}}}");
        assert!(answer.contains(&place), "{answer}");
    };
    is_at(&editor.at("definition", &main, 8, 38), 9, 17);
    is_at(&editor.at("definition", &main, 9, 46), 4, 13);
    // Behind a sign of two UTF-16 units.
    is_at(&editor.at("definition", &main, 9, 67), 3, 13);
    let included = editor.at("definition", &main, 7, 20);
    assert!(included.contains("part/a.conf"), "{included}");

    let items = editor.at("completion", &main, 6, 10);
    assert!(items.contains("\"label\":\"listen\"") && items.contains("\"label\":\"server_name\""));
    assert!(
        !items.contains("\"label\":\"worker_processes\""),
        "not in a server"
    );
    let items = editor.at("completion", &main, 8, 37);
    assert!(items.contains("\"label\":\"@other\""), "{items}");
    let items = editor.at("completion", &main, 9, 38);
    assert!(items.contains("\"label\":\"back\""), "{items}");

    let layout = editor.ask(
        "textDocument/formatting",
        &format!(
            r#"{{"textDocument":{{"uri":"{main}"}},"options":{{"tabSize":4,"insertSpaces":true}}}}"#
        ),
    );
    assert!(
        layout.contains("upstream back {\\n        server 127.0.0.1:9;"),
        "{layout}"
    );
    let unknown = editor.ask("textDocument/unknown", "{}");
    assert!(unknown.contains("-32601"), "{unknown}");
    editor.end();
}
