//! Recognises files that are not an nginx.conf at all, for a hint below the first error.

/// How much of a file is looked at, in bytes: license headers can be long.
const LOOKED_AT: usize = 16 << 10;

/// A way to recognise a format: what a line of it begins with, and what the line ends with.
struct LineShape {
    begins: &'static str,
    ends: &'static str,
    format: &'static str,
}

/// The formats that people have at hand. Lines of an nginx.conf end with `;`, `{` or `}`, or are continued.
const SHAPES: &[LineShape] = &[
    LineShape {
        begins: "<VirtualHost",
        ends: ">",
        format: "an Apache configuration",
    },
    LineShape {
        begins: "<IfModule",
        ends: ">",
        format: "an Apache configuration",
    },
    LineShape {
        begins: "<Directory",
        ends: ">",
        format: "an Apache configuration",
    },
    LineShape {
        begins: "RewriteEngine ",
        ends: "",
        format: "an Apache configuration",
    },
    LineShape {
        begins: "{",
        ends: "",
        format: "JSON",
    },
    LineShape {
        begins: "---",
        ends: "",
        format: "YAML",
    },
    LineShape {
        begins: "",
        ends: ":",
        format: "YAML",
    },
    LineShape {
        begins: "[",
        ends: "]",
        format: "TOML or INI",
    },
    LineShape {
        begins: "vcl 4",
        ends: ";",
        format: "a VCL file of Varnish",
    },
    LineShape {
        begins: "frontend ",
        ends: "",
        format: "a configuration of HAProxy",
    },
    LineShape {
        begins: "defaults",
        ends: "",
        format: "a configuration of HAProxy",
    },
    LineShape {
        begins: "reverse_proxy ",
        ends: "",
        format: "a Caddyfile",
    },
    LineShape {
        begins: "file_server",
        ends: "",
        format: "a Caddyfile",
    },
    LineShape {
        begins: "server.document-root",
        ends: "",
        format: "a configuration of lighttpd",
    },
    LineShape {
        begins: "#!/",
        ends: "",
        format: "a script",
    },
];

/// The format of a file that has syntax errors, with its article, if its lines are known from another program.
pub(crate) fn recognise_format(text: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(&text[..text.len().min(LOOKED_AT)]);
    let lines = text.lines().map(str::trim);
    let said =
        |line: &&str| !line.is_empty() && (!line.starts_with('#') || line.starts_with("#!/"));
    // Where a server or an http block begins it is meant to be an nginx.conf, whatever follows.
    let mut lines = lines.filter(said).take_while(|line| {
        !["http", "events", "server", "stream"]
            .iter()
            .any(|block| is_block(line, block))
    });
    lines.find_map(|line| {
        let shape = SHAPES.iter().find(|shape| {
            line.starts_with(shape.begins)
                && line.ends_with(shape.ends)
                && !(shape.begins.is_empty() && line.contains(' '))
        });
        shape.map(|shape| shape.format)
    })
}

/// Whether a line opens this block.
fn is_block(line: &str, name: &str) -> bool {
    line.strip_prefix(name)
        .is_some_and(|rest| rest.trim_start().starts_with('{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_others_are_recognised() {
        for (text, format) in [
            (
                "# a site\n<VirtualHost *:80>\n</VirtualHost>\n",
                Some("an Apache configuration"),
            ),
            ("{\"a\": 1}\n", Some("JSON")),
            ("server:\n  listen: 80\n", Some("YAML")),
            ("[server]\nport = 80\n", Some("TOML or INI")),
            (
                "example.com {\n  reverse_proxy localhost:3000\n}\n",
                Some("a Caddyfile"),
            ),
            (
                "vcl 4.1;\nbackend default { }\n",
                Some("a VCL file of Varnish"),
            ),
            (
                "global\n  daemon\nfrontend x\n  bind :80\n",
                Some("a configuration of HAProxy"),
            ),
            ("#!/bin/sh\nnginx\n", Some("a script")),
            (
                "events {}\nhttp {\n  server {\n    listen 80\n  }\n}\n",
                None,
            ),
            ("user  nobody\nworker_processes 1;\nhttp {\n{\n}\n", None),
            ("", None),
            ("\u{fffd}\u{fffd}", None),
        ] {
            assert_eq!(recognise_format(text.as_bytes()), format, "{text:?}");
        }
    }
}
