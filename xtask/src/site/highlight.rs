//! Colours in code blocks: configurations of nginx, with a link from each directive to the reference, and commands.

use super::escape;

/// A configuration. `link` is the address of a directive's description.
pub(crate) fn nginx(code: &str, link: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = code;
    // Whether the next word is a directive's name.
    let mut is_name = true;
    while let Some(first) = rest.chars().next() {
        let end = token_end(rest, first);
        let (token, after) = rest.split_at(end);
        rest = after;
        match first {
            '#' => out.push_str(&span("c", token)),
            '"' | '\'' => {
                out.push_str(&span("s", token));
                is_name = false;
            }
            '$' => out.push_str(&span("v", token)),
            ';' | '{' | '}' => {
                out.push_str(token);
                is_name = true;
            }
            letter if letter.is_whitespace() => out.push_str(token),
            _ => {
                match link(token).filter(|_| is_name) {
                    Some(address) => {
                        out.push_str(&format!("<a class=d href=\"{address}\">{token}</a>"));
                    }
                    None => out.push_str(&escape(token)),
                }
                is_name = false;
            }
        }
    }
    out
}

fn span(class: &str, text: &str) -> String {
    format!("<span class={class}>{}</span>", escape(text))
}

/// Where the token ends that begins the text with this letter.
fn token_end(text: &str, first: char) -> usize {
    let until = |stop: fn(char) -> bool| {
        let found = text
            .char_indices()
            .skip(1)
            .find(|(_, letter)| stop(*letter));
        found.map_or(text.len(), |(at, _)| at)
    };
    match first {
        '#' => until(|letter| letter == '\n'),
        '"' | '\'' => {
            let mut letters = text.char_indices().skip(1);
            while let Some((at, letter)) = letters.next() {
                match letter {
                    '\\' => drop(letters.next()),
                    letter if letter == first => return at + 1,
                    _ => {}
                }
            }
            text.len()
        }
        '$' => until(|letter| !letter.is_alphanumeric() && letter != '_'),
        ';' | '{' | '}' => 1,
        letter if letter.is_whitespace() => until(|letter| !letter.is_whitespace()),
        _ => until(|letter| letter.is_whitespace() || "\"'$;{}".contains(letter)),
    }
}

/// Commands of a shell: comments are grey.
pub(crate) fn commands(code: &str) -> String {
    let line = |line: &str| match line.split_once(" #") {
        Some((command, comment)) => {
            format!("{}{}", escape(command), span("c", &format!(" #{comment}")))
        }
        None if line.starts_with('#') => span("c", line),
        None => escape(line),
    };
    let lines: Vec<String> = code.lines().map(line).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_links_and_colours() {
        let link = |name: &str| (name == "root").then(|| "r.html#root".to_owned());
        assert_eq!(
            nginx("root /a$b; # c\n", link),
            "<a class=d href=\"r.html#root\">root</a> /a<span class=v>$b</span>; <span class=c># c</span>\n"
        );
        assert_eq!(
            nginx("x root 'a;\"';", link),
            "x root <span class=s>'a;&quot;'</span>;"
        );
    }
}
