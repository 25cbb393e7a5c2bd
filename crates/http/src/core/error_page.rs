//! `error_page`: what is shown in place of a response with a certain status.

use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, DirectiveLine, Expression};

/// One status of `error_page`.
#[derive(Clone, Debug)]
pub struct ErrorPage {
    /// The status that it replaces.
    pub status: u16,
    /// The status of the response: `None` keeps it, 0 takes that of the page.
    pub answer: Option<u16>,
    /// The page: a path, a named location or a URL.
    pub target: Expression,
}

impl ErrorPage {
    /// Adds those of one line, which may name several statuses.
    pub(super) fn add_to(
        pages: &mut Vec<ErrorPage>,
        line: &mut DirectiveLine,
    ) -> Result<(), Diagnostic> {
        let last = line.args().len() - 1;
        let mut codes = last;
        let mut answer = None;
        if let Some(number) = line.arg(last - 1).text.strip_prefix(b"=") {
            let number = number.as_bstr().to_owned();
            let value = if number.is_empty() {
                Some(0)
            } else {
                parse_status(number.as_bstr())
            };
            // `error_page =404 /page` names no status to replace.
            let Some(value) = value.filter(|_| last > 1) else {
                return Err(line.error_at(last - 1, format!("invalid value \"={number}\"")));
            };
            answer = Some(value);
            codes -= 1;
        }
        let target = line.expression(last)?;
        for index in 0..codes {
            let text = line.arg(index).text.clone();
            // 499 means that the client has disconnected, so there is no page to send. nginx rejects it too.
            let Some(status) = parse_status(text.as_bstr()).filter(|status| *status != 499) else {
                return Err(line.error_at(index, format!("invalid value \"{text}\"")));
            };
            if !(300..=599).contains(&status) {
                return Err(line.error_at(
                    index,
                    format!("value \"{text}\" must be between 300 and 599"),
                ));
            }
            // nginx's own codes (494 to 497: oversized header, certificate errors, HTTP on an HTTPS port) never reach
            // the client.
            let shown = match status {
                494..=497 if answer.is_none() => Some(400),
                _ => answer,
            };
            pages.push(ErrorPage {
                status,
                answer: shown,
                target: target.clone(),
            });
        }
        Ok(())
    }
}

/// A number, which the callers check for being a status.
fn parse_status(text: &BStr) -> Option<u16> {
    text.to_str().ok()?.parse().ok()
}
