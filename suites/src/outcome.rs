//! What came of the cases, as a table.

use crate::case::Case;

/// What a client saw through a server, or why it saw nothing.
pub(crate) type Seen = Result<Vec<String>, String>;

/// A line of the table.
pub(crate) struct Row {
    name: &'static str,
    nginx: String,
    weir: String,
    verdict: Verdict,
}

enum Verdict {
    Equal,
    /// Lines that differ on purpose, and why.
    Known(Vec<&'static str>),
    /// Lines of nginx and of Weir.
    Differs(Vec<(String, String)>),
    Skipped(String),
    Failed(String),
}

impl Row {
    pub(crate) fn skipped(name: &'static str, why: String) -> Row {
        Row {
            name,
            nginx: String::new(),
            weir: String::new(),
            verdict: Verdict::Skipped(why.lines().next().unwrap_or_default().to_owned()),
        }
    }

    /// A row of figures of which Weir's must be good by themselves.
    pub(crate) fn scored(
        name: &'static str,
        nginx: String,
        weir: String,
        failed: Option<String>,
    ) -> Row {
        let verdict = failed.map_or(Verdict::Equal, Verdict::Failed);
        Row {
            name,
            nginx,
            weir,
            verdict,
        }
    }

    pub(crate) fn compared(case: &Case, nginx: Seen, weir: Seen) -> Row {
        let (nginx, weir) = match (nginx, weir) {
            (Ok(nginx), Ok(weir)) => (nginx, weir),
            (Err(why), _) => return Row::skipped(case.name, format!("with nginx: {why}")),
            (_, Err(why)) => {
                return Row::scored(
                    case.name,
                    "runs".to_owned(),
                    "does not run".to_owned(),
                    Some(why),
                );
            }
        };
        let (mut known, mut others) = (Vec::new(), Vec::new());
        for (nginx, weir) in differences(&nginx, &weir) {
            let one = if nginx.is_empty() { &weir } else { &nginx };
            match case
                .differs
                .iter()
                .find(|(start, _)| one.starts_with(start))
            {
                Some((_, why)) => known.push(*why),
                None => others.push((nginx, weir)),
            }
        }
        known.dedup();
        let verdict = match (others.is_empty(), known.is_empty()) {
            (true, true) => Verdict::Equal,
            (true, false) => Verdict::Known(known),
            (false, _) => Verdict::Differs(others),
        };
        let figure = |seen: &[String]| {
            let failed = seen.iter().any(|line| line.starts_with("exit code"));
            let note = if failed { ", the client failed" } else { "" };
            format!("{} seen{note}", seen.len())
        };
        Row {
            name: case.name,
            nginx: figure(&nginx),
            weir: figure(&weir),
            verdict,
        }
    }

    /// Whether it needs a look.
    pub(crate) fn is_bad(&self) -> bool {
        matches!(self.verdict, Verdict::Differs(_) | Verdict::Failed(_))
    }
}

/// Pairs of lines that are not the same. Lines begin with their name, so that one that is missing is found.
fn differences(nginx: &[String], weir: &[String]) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut theirs = nginx.iter().peekable();
    for line in weir {
        if theirs.peek() == Some(&line) {
            theirs.next();
            continue;
        }
        // Does it come later? Then what stands before it is missing here.
        let rest: Vec<&String> = theirs.clone().collect();
        match rest.iter().position(|other| *other == line) {
            Some(at) => {
                for _ in 0..at {
                    let missing = theirs.next().cloned().unwrap_or_default();
                    pairs.push((missing, String::new()));
                }
                theirs.next();
            }
            None => {
                let comes_later = theirs.peek().is_some_and(|other| weir.contains(*other));
                let other = if comes_later { None } else { theirs.next() };
                pairs.push((other.cloned().unwrap_or_default(), line.clone()));
            }
        }
    }
    pairs.extend(theirs.map(|missing| (missing.clone(), String::new())));
    pairs
}

/// Shows all that was seen.
pub(crate) fn show(server: &str, seen: &Seen) {
    match seen {
        Ok(lines) => lines
            .iter()
            .for_each(|line| println!("   {server:<6} {line}")),
        Err(why) => println!("   {server:<6} {why}"),
    }
}

/// Prints the table, and what differs below it.
pub(crate) fn print(rows: &[Row]) {
    println!("\n| suite | nginx | Weir | |\n|---|---|---|---|");
    for row in rows {
        let verdict = match &row.verdict {
            Verdict::Equal => "equal".to_owned(),
            Verdict::Known(why) => format!("differs on purpose: {}", why.join("; ")),
            Verdict::Differs(lines) => format!("{} lines differ", lines.len()),
            Verdict::Skipped(why) => format!("skipped: {why}"),
            Verdict::Failed(why) => why.lines().next().unwrap_or_default().to_owned(),
        };
        let verdict = match (&row.verdict, row.nginx == row.weir) {
            (Verdict::Equal, false) => String::new(),
            _ => verdict,
        };
        println!(
            "| {} | {} | {} | {verdict} |",
            row.name, row.nginx, row.weir
        );
    }
    for row in rows {
        if let Verdict::Differs(lines) = &row.verdict {
            println!("\n{}:", row.name);
            for (nginx, weir) in lines {
                println!("  nginx: {nginx}\n  weir:  {weir}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::differences;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn lines_that_differ_are_paired() {
        let pairs = |nginx: &str, weir: &str| differences(&lines(nginx), &lines(weir));
        let pair = |nginx: &str, weir: &str| (nginx.to_owned(), weir.to_owned());
        assert_eq!(pairs("a b c", "a b c"), []);
        assert_eq!(pairs("a b c", "a x c"), [pair("b", "x")]);
        assert_eq!(pairs("a b c", "a c"), [pair("b", "")]);
        assert_eq!(pairs("a c", "a b c"), [pair("", "b")]);
        assert_eq!(pairs("a", ""), [pair("a", "")]);
    }
}
