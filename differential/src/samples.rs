//! Texts that a pattern matches: what to ask for so that a regular expression of a configuration takes part.
//!
//! A sample is made by walking the pattern, not by solving it: look-arounds and back references are passed over. A
//! sample that does not match is one more request, no mistake.

/// Up to three texts for a pattern, the shortest first. Anchors are left out.
pub fn samples(pattern: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for turn in 0..3 {
        let mut walk = Walk {
            pattern: pattern.chars().collect(),
            at: 0,
            turn,
        };
        let text = walk.alternatives();
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

struct Walk {
    pattern: Vec<char>,
    at: usize,
    /// Which alternative is taken, and whether what is optional is there.
    turn: usize,
}

impl Walk {
    fn peek(&self) -> Option<char> {
        self.pattern.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let char = self.peek();
        self.at += 1;
        char
    }

    fn takes(&mut self, text: &str) -> bool {
        let here = self.pattern.get(self.at..).unwrap_or_default();
        let found =
            text.chars().count() <= here.len() && text.chars().zip(here).all(|(a, &b)| a == b);
        self.at += if found { text.chars().count() } else { 0 };
        found
    }

    fn alternatives(&mut self) -> String {
        let mut texts = vec![self.sequence()];
        while self.takes("|") {
            texts.push(self.sequence());
        }
        texts.swap_remove(self.turn.min(2) * (texts.len() - 1) / 2)
    }

    fn sequence(&mut self) -> String {
        let mut text = String::new();
        while let Some(char) = self.peek() {
            if char == '|' || char == ')' {
                break;
            }
            let part = self.part();
            let times = self.times();
            text.push_str(&part.repeat(times.min(8)));
        }
        text
    }

    /// How often the part before stands there.
    fn times(&mut self) -> usize {
        let times = match self.peek() {
            Some('*') => [0, 1, 3][self.turn],
            Some('?') => [0, 1, 1][self.turn],
            Some('+') => [1, 2, 3][self.turn],
            Some('{') => {
                let digits: String = self.pattern[self.at + 1..]
                    .iter()
                    .take_while(|char| char.is_ascii_digit())
                    .collect();
                while self.next().is_some_and(|char| char != '}') {}
                self.at -= 1;
                digits.parse().unwrap_or(1)
            }
            _ => return 1,
        };
        self.at += 1;
        // Lazy or possessive: the same texts match.
        let _ = self.takes("?") || self.takes("+");
        times
    }

    fn part(&mut self) -> String {
        match self.next() {
            Some('(') => self.group(),
            Some('[') => self.class(),
            Some('\\') => self.escaped().to_string(),
            Some('.') => ["a", "x", "1"][self.turn].to_owned(),
            Some('^' | '$') | None => String::new(),
            Some(char) => char.to_string(),
        }
    }

    fn group(&mut self) -> String {
        let mut counts = true;
        if self.takes("?") {
            counts = !(self.takes("=") || self.takes("!") || self.takes("<=") || self.takes("<!"));
            if counts && !self.takes(":") {
                // A name, or options.
                while self
                    .next()
                    .is_some_and(|char| !matches!(char, '>' | ':' | ')'))
                {}
                if self.pattern.get(self.at - 1) == Some(&')') {
                    return String::new();
                }
            }
        }
        let text = self.alternatives();
        let _ = self.takes(")");
        if counts { text } else { String::new() }
    }

    fn escaped(&mut self) -> char {
        match self.next() {
            Some('d') => '7',
            Some('w') => 'w',
            Some('s') => ' ',
            Some('S' | 'D' | 'W') => '-',
            Some('b' | 'B' | 'A' | 'z' | 'Z') | None => '/',
            Some(char) => char,
        }
    }

    fn class(&mut self) -> String {
        let is_negated = self.takes("^");
        let mut members = Vec::new();
        while let Some(char) = self.next() {
            match char {
                ']' if !members.is_empty() => break,
                '\\' => members.push(self.escaped()),
                '[' if self.takes(":") => {
                    while self.next().is_some_and(|char| char != ']') {}
                    members.push('a');
                }
                _ => members.push(char),
            }
        }
        if is_negated {
            let free = ['x', '1', 'Z', '-']
                .into_iter()
                .find(|char| !members.contains(char));
            return free.unwrap_or('q').to_string();
        }
        let index = self.turn * members.len().saturating_sub(1) / 2;
        members.get(index).map(char::to_string).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::samples;

    #[test]
    fn a_pattern_gives_texts_that_it_matches() {
        assert_eq!(samples(r"\.(jpg|png)$"), [".jpg", ".png"]);
        assert_eq!(samples("^/api/v[0-9]+/(?<id>x*)$")[0], "/api/v0/");
        assert_eq!(samples("(?!no)yes{2}"), ["yess"]);
        assert!(samples("((((").len() == 1);
    }
}
