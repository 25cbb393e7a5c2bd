//! `ssl_conf_command NAME VALUE`: commands of OpenSSL's configuration, as far as they mean something here.
//!
//! They are the way to settings that have no directive, and they come last: what they say counts.

use bstr::{BStr, BString, ByteSlice};
use net::tls::{Choice, Problem, Protocols};

/// What commands change.
pub(crate) struct Commanded {
    /// Bits of [`Protocols::WORDS`].
    pub(crate) protocols: u32,
    pub(crate) choice: Choice,
    pub(crate) certificate: Option<BString>,
    pub(crate) key: Option<BString>,
    pub(crate) prefer_server_ciphers: bool,
    pub(crate) tickets: bool,
    /// What was said and has no effect.
    pub(crate) ignored: Vec<String>,
}

impl Commanded {
    /// Does what a command says. `Err`: OpenSSL does not know it either, or its value is wrong.
    pub(crate) fn apply(&mut self, name: &BStr, value: &BStr) -> Result<(), Problem> {
        let text = value.to_str_lossy();
        let failed = |why: &str| Problem {
            message: format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed ({why})"),
        };
        match name.to_str_lossy().to_ascii_lowercase().as_str() {
            "certificate" => self.certificate = Some(value.to_owned()),
            "privatekey" => self.key = Some(value.to_owned()),
            "ciphersuites" => self.choice.set_ciphersuites(&text)?,
            "cipherstring" => self.choice.set_ciphers(&text)?,
            "curves" | "groups" => self.choice.set_curves(&text)?,
            "minprotocol" => {
                let from = version(&text).ok_or_else(|| failed("bad value"))?;
                self.protocols &= u32::MAX << from;
            }
            "maxprotocol" => {
                let to = version(&text).ok_or_else(|| failed("bad value"))?;
                self.protocols &= (2 << to) - 1;
            }
            "protocol" => {
                for word in text.split(',').map(str::trim) {
                    let (on, word) = signed(word);
                    let bits = match word {
                        "ALL" => (1 << Protocols::WORDS.len()) - 1,
                        word => 1 << version(word).ok_or_else(|| failed("bad value"))?,
                    };
                    self.protocols = match on {
                        true => self.protocols | bits,
                        false => self.protocols & !bits,
                    };
                }
            }
            "options" => {
                for word in text.split(',').map(str::trim) {
                    self.option(word);
                }
            }
            "signaturealgorithms"
            | "clientsignaturealgorithms"
            | "recordpadding"
            | "numtickets"
            | "dhparameters"
            | "ecdhparameters"
            | "verifymode"
            | "verifycafile"
            | "chaincafile" => {
                self.ignored.push(format!("\"{name}\""));
            }
            _ => return Err(failed("SSL: error:0A00018E:SSL routines::unknown cmd name")),
        }
        Ok(())
    }

    fn option(&mut self, word: &str) {
        let (on, name) = signed(word);
        match name.to_ascii_lowercase().as_str() {
            "sessionticket" => self.tickets = on,
            "serverpreference" => self.prefer_server_ciphers = on,
            // What these ask for is how it is.
            "compression"
            | "bugs"
            | "norenegotiation"
            | "noresumptiononrenegotiation"
            | "extendedmastersecret"
            | "encryptthenmac"
            | "middleboxcompat"
            | "unsafelegacyrenegotiation"
            | "ecdhsingle"
            | "dhsingle"
            | "antireplay"
            | "caandidates" => {}
            _ => self.ignored.push(format!("\"Options {word}\"")),
        }
    }
}

fn signed(word: &str) -> (bool, &str) {
    match word.strip_prefix('-') {
        Some(word) => (false, word),
        None => (true, word.strip_prefix('+').unwrap_or(word)),
    }
}

/// A version's place among [`Protocols::WORDS`].
fn version(word: &str) -> Option<usize> {
    if word.eq_ignore_ascii_case("none") {
        return Some(0);
    }
    Protocols::WORDS
        .iter()
        .position(|known| known.eq_ignore_ascii_case(word))
}
