//! The line by which a member of a cluster is recognized: what it claims about its request, and a signature over that and
//! the request itself.
//!
//! ```text
//! v=1;n=NAME;h=1;e=0123456789abcdef;t=1764200000000;f=10.0.0.1:7070;k=32 hex digits;c=192.0.2.7;s=1;o=0;j=1764200000000-0.0123456789abcdef;m=64 hex digits
//! ```
//!
//! `n` the cluster, `h` the hop (0 asks only whether the member is there), `e` the epoch, `t` the time in milliseconds, `f`
//! who asks, `k` the hash of the key, `c` the client, `s` whether the client came over TLS, `o` whether only what is
//! stored is wanted, `j` how far the asker has read the journal of purges, `m` HMAC-SHA256 over method, host, target and all that precedes it. The order is fixed, and nothing may
//! be left out: a signed text that can be written in two ways is one that can be mistaken.
//!
//! A line is valid for [`MAX_SKEW_MS`]. Within that time an attacker who has read it can repeat it for the
//! same method, host and target, and gets what is stored, or purges again. There is no TLS between members yet: the network
//! between them has to be trusted.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::{digest, hmac};
use bstr::{BStr, BString, ByteSlice};

use super::journal_position::JournalPosition;

/// By how much the clocks of two members may differ, in milliseconds.
const MAX_SKEW_MS: u64 = 60_000;

/// The longest line that is looked at, in bytes.
const MAX_LINE: usize = 512;

/// The keys of a cluster's secrets.
#[derive(Clone, Debug)]
pub struct PeerToken {
    /// The first one signs; all are accepted, so that a secret can be replaced while the members run.
    keys: Vec<hmac::Key>,
}

/// What a member says about its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerClaim {
    /// 0: it asks whether this member is there. 1: it asks for a key. 2: the member that it asked first named this one.
    pub hop: u8,
    /// The epoch of its view of the cluster.
    pub epoch: u64,
    /// Its own address as a member; `None` if it is none.
    pub from: Option<SocketAddr>,
    /// The hash of the key.
    pub key: [u8; 16],
    /// The address of its client; `None` for one at a UNIX domain socket.
    pub client: Option<IpAddr>,
    /// Its client's connection is a TLS one.
    pub is_secure: bool,
    /// It wants nothing that has to be asked of the origin first.
    pub only_stored: bool,
    /// How far it has read the zone's journal of purges: what it is given must be as new. `None`: there is no journal.
    pub journal: Option<JournalPosition>,
}

/// Why a line is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// There is none.
    Missing,
    /// It is not one.
    Malformed,
    /// It was not made with a secret of this cluster, or for another request.
    Signature,
    /// It is too old, or the clocks differ too much.
    Time,
    /// It is for another cluster.
    Cluster,
}

impl TokenFault {
    /// The reason, for the log.
    pub fn reason(self) -> &'static str {
        match self {
            TokenFault::Missing => "no \"Weir-Cluster\" header",
            TokenFault::Malformed => "invalid \"Weir-Cluster\" header",
            TokenFault::Signature => "wrong signature, do the secrets differ?",
            TokenFault::Time => "too old, do the clocks differ?",
            TokenFault::Cluster => "for another cluster",
        }
    }
}

/// The hash of a cache key, as members exchange it: which member owns it, and whether two members mean the same.
pub fn hash_of_key(text: &[u8]) -> [u8; 16] {
    let whole = digest::digest(&digest::SHA256, text);
    let mut hash = [0; 16];
    hash.copy_from_slice(&whole.as_ref()[..16]);
    hash
}

impl PeerToken {
    /// With these secrets, of which there is at least one.
    pub fn new(secrets: &[BString]) -> PeerToken {
        let key = |secret: &BString| hmac::Key::new(hmac::HMAC_SHA256, secret);
        PeerToken {
            keys: secrets.iter().map(key).collect(),
        }
    }

    /// Appends the line for a request. `asked` is its method, host and target.
    pub fn sign(
        &self,
        cluster: &BStr,
        claim: &PeerClaim,
        asked: [&[u8]; 3],
        now_ms: u64,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        out.extend_from_slice(b"v=1;n=");
        out.extend_from_slice(cluster);
        let from = claim.from.map(|from| from.to_string()).unwrap_or_default();
        let client = claim.client.map(|client| client.to_string());
        let rest = format!(
            ";h={};e={:016x};t={now_ms};f={from};k={};c={};s={};o={};j={}",
            claim.hop,
            claim.epoch,
            hex_of(&claim.key),
            client.unwrap_or_default(),
            u8::from(claim.is_secure),
            u8::from(claim.only_stored),
            claim.journal.map(|id| id.to_string()).unwrap_or_default(),
        );
        out.extend_from_slice(rest.as_bytes());
        let Some(key) = self.keys.first() else {
            return;
        };
        let mut context = hmac::Context::with_key(key);
        update(&mut context, asked, &out[start..]);
        let tag = context.sign();
        out.extend_from_slice(b";m=");
        out.extend_from_slice(hex_of(tag.as_ref()).as_bytes());
    }

    /// What the line of a request says, if it is one of this cluster's.
    pub fn verify(
        &self,
        cluster: &BStr,
        line: Option<&[u8]>,
        asked: [&[u8]; 3],
        now_ms: u64,
    ) -> Result<PeerClaim, TokenFault> {
        let line = line.ok_or(TokenFault::Missing)?;
        if line.len() > MAX_LINE {
            return Err(TokenFault::Malformed);
        }
        let (signed, tag) = line.rsplit_once_str(";m=").ok_or(TokenFault::Malformed)?;
        let tag: [u8; 32] = bytes_of(tag).ok_or(TokenFault::Malformed)?;
        let text = asked_text(asked, signed);
        // The comparison takes the same time wherever the first difference is. All keys are tried, whichever fits.
        let mut fits = false;
        for key in &self.keys {
            fits |= hmac::verify(key, &text, &tag).is_ok();
        }
        if !fits {
            return Err(TokenFault::Signature);
        }
        let (claim, made_ms) = parse(cluster, signed)?;
        match now_ms.abs_diff(made_ms) <= MAX_SKEW_MS {
            true => Ok(claim),
            false => Err(TokenFault::Time),
        }
    }
}

/// What is signed: the request in three lines, and what is claimed about it. None of the three can contain a line's end.
fn update(context: &mut hmac::Context, asked: [&[u8]; 3], claims: &[u8]) {
    context.update(&asked_text(asked, claims));
}

fn asked_text(asked: [&[u8]; 3], claims: &[u8]) -> Vec<u8> {
    let [method, host, target] = asked;
    let line: &[u8] = b"\n";
    [
        b"weir-cluster",
        line,
        method,
        line,
        host,
        line,
        target,
        line,
        claims,
    ]
    .concat()
}

/// Reads what is claimed, and when. The signature has been verified, so that a fault here is one of another version.
fn parse(cluster: &BStr, signed: &[u8]) -> Result<(PeerClaim, u64), TokenFault> {
    let mut fields = signed.split_str(";");
    let mut next = |name: &str| -> Result<&[u8], TokenFault> {
        let field = fields.next().ok_or(TokenFault::Malformed)?;
        let value = field
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="));
        value.ok_or(TokenFault::Malformed)
    };
    if next("v")? != b"1" {
        return Err(TokenFault::Malformed);
    }
    if next("n")? != cluster.as_bytes() {
        return Err(TokenFault::Cluster);
    }
    let hop = number(next("h")?).ok_or(TokenFault::Malformed)?;
    let epoch: [u8; 8] = bytes_of(next("e")?).ok_or(TokenFault::Malformed)?;
    let made_ms = number(next("t")?).ok_or(TokenFault::Malformed)?;
    let from = optional(next("f")?)?;
    let key = bytes_of(next("k")?).ok_or(TokenFault::Malformed)?;
    let client = optional(next("c")?)?;
    let (is_secure, only_stored) = (next("s")? == b"1", next("o")? == b"1");
    let journal = match next("j")? {
        b"" => None,
        id => Some(JournalPosition::parse(id).ok_or(TokenFault::Malformed)?),
    };
    let claim = PeerClaim {
        hop,
        epoch: u64::from_be_bytes(epoch),
        from,
        key,
        client,
        is_secure,
        only_stored,
        journal,
    };
    match fields.next() {
        None => Ok((claim, made_ms)),
        Some(_) => Err(TokenFault::Malformed),
    }
}

fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    text.to_str().ok()?.parse().ok()
}

/// A value, or `None` for an empty text.
fn optional<N: std::str::FromStr>(text: &[u8]) -> Result<Option<N>, TokenFault> {
    match text {
        b"" => Ok(None),
        text => number(text).map(Some).ok_or(TokenFault::Malformed),
    }
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A fixed number of bytes in lower-case hexadecimal digits.
fn bytes_of<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::journal_position::JournalId;
    use super::*;

    const ASKED: [&[u8]; 3] = [b"GET", b"example.com", b"/a?b"];

    fn claim() -> PeerClaim {
        PeerClaim {
            hop: 1,
            epoch: 0x0123_4567_89ab_cdef,
            from: Some("10.0.0.1:7070".parse().expect("it is one")),
            key: hash_of_key(b"http://origin/a"),
            client: Some("2001:db8::1".parse().expect("it is one")),
            is_secure: true,
            only_stored: false,
            journal: Some(JournalPosition {
                id: JournalId::new(1_764_200_000_000, 3),
                digest: 5,
            }),
        }
    }

    fn signed(token: &PeerToken, claim: &PeerClaim) -> Vec<u8> {
        let mut line = Vec::new();
        token.sign("edge".into(), claim, ASKED, 1_000_000, &mut line);
        line
    }

    fn token(secret: &str) -> PeerToken {
        PeerToken::new(&[secret.into()])
    }

    #[test]
    fn what_was_signed_is_read_again() {
        let (token, claim) = (token("secret"), claim());
        let alone = PeerClaim {
            from: None,
            client: None,
            journal: None,
            ..claim.clone()
        };
        for claim in [claim, alone] {
            let line = signed(&token, &claim);
            let read = token.verify("edge".into(), Some(&line), ASKED, 1_030_000);
            assert_eq!(read, Ok(claim));
        }
    }

    #[test]
    fn nothing_else_is_accepted() {
        let ours = token("secret");
        let line = signed(&ours, &claim());
        let verify = |token: &PeerToken, line: &[u8], asked, now_ms| {
            token.verify("edge".into(), Some(line), asked, now_ms)
        };
        let now = 1_000_000;
        let rows: [(&str, Result<PeerClaim, TokenFault>, TokenFault); 7] = [
            (
                "another secret",
                verify(&token("other"), &line, ASKED, now),
                TokenFault::Signature,
            ),
            (
                "another target",
                verify(&ours, &line, [b"GET", b"example.com", b"/b"], now),
                TokenFault::Signature,
            ),
            (
                "another host",
                verify(&ours, &line, [b"GET", b"example.org", b"/a?b"], now),
                TokenFault::Signature,
            ),
            (
                "too late",
                verify(&ours, &line, ASKED, now + 60_001),
                TokenFault::Time,
            ),
            (
                "too early",
                verify(&ours, &line, ASKED, now - 60_001),
                TokenFault::Time,
            ),
            (
                "another cluster",
                ours.verify("core".into(), Some(&line), ASKED, now),
                TokenFault::Cluster,
            ),
            (
                "none",
                ours.verify("edge".into(), None, ASKED, now),
                TokenFault::Missing,
            ),
        ];
        for (name, read, fault) in rows {
            assert_eq!(read, Err(fault), "{name}");
        }
    }

    #[test]
    fn no_changed_byte_is_accepted_and_no_short_line_panics() {
        let token = token("secret");
        let line = signed(&token, &claim());
        for at in 0..line.len() {
            let mut other = line.clone();
            other[at] ^= 1;
            let read = token.verify("edge".into(), Some(&other), ASKED, 1_000_000);
            assert!(read.is_err(), "{}", other.as_bstr());
            let read = token.verify("edge".into(), Some(&line[..at]), ASKED, 1_000_000);
            assert!(read.is_err());
        }
    }

    #[test]
    fn an_old_secret_is_accepted_while_it_is_named() {
        let both = PeerToken::new(&["new".into(), "old".into()]);
        let line = signed(&token("old"), &claim());
        assert!(
            both.verify("edge".into(), Some(&line), ASKED, 1_000_000)
                .is_ok()
        );
        let line = signed(&both, &claim());
        let new = token("new").verify("edge".into(), Some(&line), ASKED, 1_000_000);
        assert!(new.is_ok());
    }
}
