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
            message: format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: error:{why})"),
        };
        let bad = || {
            failed(&format!(
                "0A000180:SSL routines::bad value:cmd={name}, value={value}"
            ))
        };
        match name.to_str_lossy().to_ascii_lowercase().as_str() {
            "certificate" => self.certificate = Some(value.to_owned()),
            "privatekey" => self.key = Some(value.to_owned()),
            "ciphersuites" => self.choice.set_ciphersuites(&text)?,
            "cipherstring" => self.choice.set_ciphers(&text)?,
            "curves" | "groups" => self.choice.set_curves(&text)?,
            "minprotocol" => {
                let from = Protocols::number(&text).ok_or_else(bad)?;
                self.protocols &= u32::MAX << from;
            }
            "maxprotocol" => {
                let to = Protocols::number(&text).ok_or_else(bad)?;
                self.protocols &= (2 << to) - 1;
            }
            "protocol" => {
                self.protocols = Protocols::command(&text, self.protocols).ok_or_else(bad)?;
            }
            "options" => {
                for word in text.split(',').map(str::trim) {
                    self.option(word).ok_or_else(bad)?;
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
            _ => {
                return Err(failed(&format!(
                    "0A000182:SSL routines::unknown cmd name:cmd={name}"
                )));
            }
        }
        Ok(())
    }

    /// `None`: OpenSSL has no such option.
    fn option(&mut self, word: &str) -> Option<()> {
        let (on, name) = match word.strip_prefix('-') {
            Some(word) => (false, word),
            None => (true, word.strip_prefix('+').unwrap_or(word)),
        };
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
            "emptyfragments"
            | "prioritizechacha"
            | "unsafelegacyserverconnect"
            | "clientrenegotiation"
            | "allownodhekex"
            | "prefernodhekex"
            | "canames"
            | "strictcertcheck"
            | "txcertificatecompression"
            | "rxcertificatecompression"
            | "ktls"
            | "ktlstxzerocopysendfile"
            | "ignoreunexpectedeof" => self.ignored.push(format!("\"Options {word}\"")),
            _ => return None,
        }
        Some(())
    }
}
