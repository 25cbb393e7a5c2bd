//! Templates of configuration files: `$NAME` and `${NAME}` become the values of environment variables.
//!
//! Only names that the environment has are replaced, so that nginx's variables stay: `$host` is one of nginx's unless
//! the environment has a variable `host`. `NGINX_ENVSUBST_FILTER`, a regular expression, makes the choice narrower.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{EntrypointLog, Environment, find_files, variable};

/// Where a derived image, or a mount, has them; the variables name other places.
const FOLDER: (&str, &str) = ("NGINX_ENVSUBST_TEMPLATE_DIR", "/etc/nginx/templates");
/// Which variables count, by a regular expression over their names; without it all do.
const FILTER: &str = "NGINX_ENVSUBST_FILTER";

/// The templates with one ending.
struct TemplateKind {
    suffix: (&'static str, &'static str),
    output: (&'static str, &'static str),
    /// Included by a block that is added to the main file.
    stream: bool,
}

/// Those of `http`, and those of `stream`, each with the variable for its ending and for its folder.
const KINDS: [TemplateKind; 2] = [
    TemplateKind {
        suffix: ("NGINX_ENVSUBST_TEMPLATE_SUFFIX", ".template"),
        output: ("NGINX_ENVSUBST_OUTPUT_DIR", "/etc/nginx/conf.d"),
        stream: false,
    },
    TemplateKind {
        suffix: ("NGINX_ENVSUBST_STREAM_TEMPLATE_SUFFIX", ".stream-template"),
        output: (
            "NGINX_ENVSUBST_STREAM_OUTPUT_DIR",
            "/etc/nginx/stream-conf.d",
        ),
        stream: true,
    },
];

/// The variables that templates may name.
type Values<'a> = BTreeMap<&'a [u8], &'a [u8]>;

/// Fills in all templates.
pub(super) fn fill(
    configuration: &Path,
    environment: &Environment,
    log: &EntrypointLog,
) -> Result<(), String> {
    let folder = PathBuf::from(setting(environment, FOLDER));
    if !folder.is_dir() {
        return Ok(());
    }
    // Before anything is written: an expression that is invalid would otherwise leave some of the files new and some old.
    let values = values(environment)?;
    // One walk for both kinds. The endings differ, so that no file is taken for both, unless variables make them equal.
    let templates = find_files(&folder);
    for kind in &KINDS {
        let suffix = setting(environment, kind.suffix).as_bytes();
        let output = PathBuf::from(setting(environment, kind.output));
        let mut filled = 0;
        for template in &templates {
            let relative = template.strip_prefix(&folder).unwrap_or(template);
            let Some(name) = relative.as_os_str().as_bytes().strip_suffix(suffix) else {
                continue;
            };
            let to = output.join(OsStr::from_bytes(name));
            log.info(&format!(
                "Running envsubst on {} to {}",
                template.display(),
                to.display()
            ));
            let written = write_filled(template, &to, &values);
            if let Err(error) = written {
                // As in the official image: the container starts with the configuration that it has.
                log.error(&format!("ERROR: {}: {error}", to.display()));
                break;
            }
            filled += 1;
        }
        if kind.stream && filled > 0 {
            include_stream(configuration, &output, log)?;
        }
    }
    Ok(())
}

/// The value of a variable, or the default. An empty variable counts as none, as in the shell scripts of the official image.
fn setting<'a>(environment: &'a Environment, (name, default): (&'a str, &'a str)) -> &'a OsStr {
    match variable(environment, name) {
        empty if empty.is_empty() => OsStr::new(default),
        value => value,
    }
}

/// The variables that may be filled in.
fn values(environment: &Environment) -> Result<Values<'_>, String> {
    let pattern = variable(environment, FILTER).as_bytes();
    let filter = conf::Regex::new(pattern, false).map_err(|error| format!("{FILTER}: {error}"))?;
    let pairs = environment.iter();
    let pairs = pairs.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    Ok(pairs.filter(|(name, _)| filter.is_match(name)).collect())
}

/// Fills in one template. Its folder below the output is created, since templates may be in folders.
fn write_filled(template: &Path, to: &Path, values: &Values<'_>) -> std::io::Result<()> {
    let text = std::fs::read(template)?;
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(to, substitute(&text, values))
}

/// Replaces the names that have a value, in one pass: a value is not searched.
fn substitute(text: &[u8], values: &Values<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let (name, length) = name_at(rest);
        match values.get(name) {
            Some(value) => {
                out.extend_from_slice(value);
                rest = &rest[length..];
            }
            None => {
                out.push(b'$');
                rest = &rest[1..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// The name behind the dollar sign, and how much of the text that is. Empty: there is none.
fn name_at(text: &[u8]) -> (&[u8], usize) {
    let braced = text.get(1) == Some(&b'{');
    let start = if braced { 2 } else { 1 };
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let rest = &text[start.min(text.len())..];
    let name = &rest[..rest.iter().take_while(|byte| is_part(byte)).count()];
    let begins_well = name.first().is_some_and(|byte| !byte.is_ascii_digit());
    let closed = !braced || rest.get(name.len()) == Some(&b'}');
    match begins_well && closed {
        true => (name, start + name.len() + usize::from(braced)),
        false => (b"", 1),
    }
}

/// Adds a `stream` block with the filled templates, unless there is one, which is the author's then.
fn include_stream(configuration: &Path, output: &Path, log: &EntrypointLog) -> Result<(), String> {
    let shown = configuration.display();
    let problem = |error: std::io::Error| format!("{shown}: {error}");
    let mut text = std::fs::read_to_string(configuration).map_err(problem)?;
    let include = format!("include {}/*.conf;", output.display());
    let has_block = text.lines().any(|line| {
        let line = line.trim_start().strip_prefix("stream");
        line.is_some_and(|rest| rest.trim_start().starts_with('{'))
    });
    if has_block {
        if !text.contains(&include) {
            log.info(&format!(
                "{shown} contains a stream block; add \"{include}\" to it for the stream templates"
            ));
        }
        return Ok(());
    }
    text.push_str(&format!("\nstream {{\n    {include}\n}}\n"));
    log.info(&format!(
        "Adding a stream block with \"{include}\" to {shown}"
    ));
    std::fs::write(configuration, text).map_err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_replaced() {
        let values: Values<'_> = [
            (b"A".as_slice(), b"1".as_slice()),
            (b"LONG_NAME", b"$A"),
            (b"EMPTY", b""),
        ]
        .into_iter()
        .collect();
        for (text, filled) in [
            ("$A ${A} $AB ${AB} $A-", "1 1 $AB ${AB} 1-"),
            ("$LONG_NAME.${LONG_NAME}", "$A.$A"),
            ("[$EMPTY][${EMPTY}]", "[][]"),
            ("$host $$A $", "$host $1 $"),
            ("${A ${} ${A-x} $1 ${1}", "${A ${} ${A-x} $1 ${1}"),
            ("${", "${"),
        ] {
            let out = substitute(text.as_bytes(), &values);
            assert_eq!(String::from_utf8_lossy(&out), filled, "{text}");
        }
    }
}
