//! `ssl_conf_command NAME VALUE`: OpenSSL configuration commands, as far as they have a meaning
//! here.
//!
//! They are the way to settings without a directive of their own. They are applied last, so they
//! override directives. Commands that OpenSSL knows but that have no counterpart here are accepted
//! with a warning: a configuration that works with nginx should start.

use bstr::{BStr, BString, ByteSlice};
use net::tls::{CipherChoice, TlsConfigError, TlsProtocols};

/// The settings that commands can change.
pub(crate) struct CommandSettings {
    /// Bits of [`TlsProtocols::WORDS`].
    pub(crate) protocols: u32,
    /// Cipher suites and groups.
    pub(crate) choice: CipherChoice,
    /// `Certificate` and `PrivateKey` replace the directives.
    pub(crate) certificate: Option<BString>,
    pub(crate) key: Option<BString>,
    pub(crate) prefer_server_ciphers: bool,
    pub(crate) tickets: bool,
    /// Commands that were accepted but have no effect, for the warning.
    pub(crate) ignored: Vec<String>,
}

impl CommandSettings {
    /// Applies a command. `Err`: OpenSSL does not know it either, or its value is invalid; nginx
    /// would refuse it too.
    pub(crate) fn apply(&mut self, name: &BStr, value: &BStr) -> Result<(), TlsConfigError> {
        let text = value.to_str_lossy();
        let failed = |why: &str| TlsConfigError {
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
            // TLS 1.3; `CipherString` is about TLS 1.2 only.
            "ciphersuites" => self.choice.set_ciphersuites(&text)?,
            "cipherstring" => self.choice.set_ciphers(&text)?,
            "curves" | "groups" => self.choice.set_curves(&text)?,
            "minprotocol" => {
                let from = TlsProtocols::version_index(&text).ok_or_else(bad)?;
                // The bits are in order of version, so a minimum masks the lower ones.
                self.protocols &= u32::MAX << from;
            }
            "maxprotocol" => {
                let to = TlsProtocols::version_index(&text).ok_or_else(bad)?;
                // A maximum masks the higher ones.
                self.protocols &= (2 << to) - 1;
            }
            "protocol" => {
                self.protocols =
                    TlsProtocols::apply_protocol_command(&text, self.protocols).ok_or_else(bad)?;
            }
            "options" => {
                for word in text.split(',').map(str::trim) {
                    // One unknown word makes the whole command an error, as in OpenSSL.
                    self.apply_option(word).ok_or_else(bad)?;
                }
            }
            // Known to OpenSSL, without a counterpart here.
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

    /// Applies one word of `Options`; `None`: OpenSSL has no such option.
    fn apply_option(&mut self, word: &str) -> Option<()> {
        let (on, name) = match word.strip_prefix('-') {
            Some(word) => (false, word),
            None => (true, word.strip_prefix('+').unwrap_or(word)),
        };
        match name.to_ascii_lowercase().as_str() {
            "sessionticket" => self.tickets = on,
            "serverpreference" => self.prefer_server_ciphers = on,
            // These ask for what is always the case here, or for workarounds that this TLS library
            // does not need.
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
