//! Templates of other tools (Jinja, ERB, envsubst, Mustache) to plain text, by obvious substitutions.
//!
//! Marks of control flow are taken out and both branches stay; a value becomes a word that its name suggests. What
//! does not parse afterwards is skipped, and counted.

/// The text with its marks replaced; `None` when it has none.
pub fn fill(text: &str) -> Option<String> {
    let mut filled = text.to_owned();
    for (open, close, is_value) in [
        ("{#", "#}", false),
        ("{%", "%}", false),
        ("<%=", "%>", true),
        ("<%", "%>", false),
        ("{{{", "}}}", true),
        ("{{", "}}", true),
        ("@@", "@@", true),
    ] {
        filled = replace(&filled, open, close, is_value);
    }
    let filled = percents(&environment(&filled));
    (filled != text).then_some(filled)
}

fn replace(text: &str, open: &str, close: &str, is_value: bool) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        let Some((inner, end)) = after.split_once(close) else {
            break;
        };
        filled.push_str(before);
        let inner = inner.trim_matches(['-', ' ', '+', '~']);
        let first = inner.split_whitespace().next().unwrap_or_default();
        // Go's templates write control flow as values.
        let is_control = [
            "if", "else", "end", "range", "with", "define", "template", "#if", "/if", "for", "/*",
        ]
        .contains(&first)
            || first.starts_with(['#', '/', '^', '$']) && open == "{{";
        if is_value && !is_control {
            filled.push_str(value(inner));
        }
        rest = end;
    }
    filled.push_str(rest);
    filled
}

/// `${NAME}` and `$NAME` of upper case letters, unless the text itself sets such a variable.
fn environment(text: &str) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        filled.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let braced = after.starts_with('{');
        let name_at = usize::from(braced);
        let name: String = after[name_at..]
            .chars()
            .take_while(|char| char.is_ascii_alphanumeric() || *char == '_')
            .collect();
        let is_upper = name.len() > 2
            && name.chars().all(|char| !char.is_ascii_lowercase())
            && name.starts_with(|char: char| char.is_ascii_uppercase() || char == '_');
        let is_own = [
            format!("set ${name}"),
            format!(" ${name} {{"),
            format!(" ${name}{{"),
        ]
        .iter()
        .any(|own| text.contains(own.as_str()));
        let closed = !braced || after[name_at + name.len()..].starts_with('}');
        if is_upper && !is_own && closed {
            filled.push_str(value(&name));
            rest = &after[name_at + name.len() + usize::from(braced)..];
        } else {
            filled.push('$');
            rest = after;
        }
    }
    filled.push_str(rest);
    filled
}

/// `%name%` of control panels; a name has letters and underscores only, and so is no part of an escaped URI.
fn percents(text: &str) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        filled.push_str(before);
        let is_part = |char: char| char.is_ascii_alphabetic() || char == '_';
        let end = after.find(|char| !is_part(char)).unwrap_or(after.len());
        if end > 1 && after[end..].starts_with('%') {
            filled.push_str(value(&after[..end]));
            rest = &after[end + 1..];
        } else {
            filled.push('%');
            rest = after;
        }
    }
    filled.push_str(rest);
    filled
}

/// A word for a value of this name.
fn value(name: &str) -> &'static str {
    let name = name.to_ascii_lowercase();
    let has = |marks: &[&str]| marks.iter().any(|mark| name.contains(mark));
    if has(&["port"]) {
        "8080"
    } else if has(&["size", "memory"]) {
        "10m"
    } else if has(&["timeout", "_ttl", "time", "_age", "valid"]) {
        "60s"
    } else if has(&["worker", "count", "conn", "level", "rate", "limit", "num"]) {
        "16"
    } else if has(&["resolver", "dns", "_ip", "address", "addr"]) || name == "ip" {
        "127.0.0.11"
    } else if has(&["enable", "_on", "gzip", "ipv6"]) {
        "on"
    } else if has(&["proto", "scheme"]) {
        "http"
    } else if has(&[
        "ssl_key",
        "cert_key",
        "certificate_key",
        "private_key",
        "privkey",
    ]) {
        "/etc/ssl/stranger.key"
    } else if has(&["cert", "ssl", "file"]) {
        "/etc/ssl/stranger.pem"
    } else if has(&["root", "path", "dir"]) {
        "/srv/www"
    } else if has(&["url", "uri"]) {
        "http://backend.example"
    } else if has(&["host", "domain", "server", "fqdn", "site"]) {
        "www.example.com"
    } else {
        "example"
    }
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn marks_become_words() {
        let text = "{% if x %}listen {{ http_port }};{% endif %} set $A_B 1; server_name ${NGINX_HOST} $A_B $host;";
        assert_eq!(
            fill(text).expect("it has marks"),
            "listen 8080; set $A_B 1; server_name www.example.com $A_B $host;"
        );
        assert_eq!(
            fill("listen %ip%:%proxy_port%; rewrite %20 /%E4%bc;").expect("it has marks"),
            "listen 127.0.0.11:8080; rewrite %20 /%E4%bc;"
        );
        assert!(fill("listen 80; return 200 $host;").is_none());
    }
}
