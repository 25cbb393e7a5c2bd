//! An error of the system in nginx's words.

use std::fmt;
use std::io;

/// An error of the system as nginx prints it: ` (2: No such file or directory)`, with the blank before.
pub struct ErrnoText<'a>(pub &'a io::Error);

impl fmt::Display for ErrnoText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.raw_os_error() {
            Some(number) => {
                // std prints "No such file or directory (os error 2)".
                let text = self.0.to_string();
                let words = text
                    .rsplit_once(" (os error")
                    .map_or(text.as_str(), |(words, _)| words);
                write!(f, " ({number}: {words})")
            }
            None => write!(f, " ({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_prints_as_nginx_does() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(
            ErrnoText(&error).to_string(),
            " (2: No such file or directory)"
        );
    }
}
