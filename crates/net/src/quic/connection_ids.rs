//! The connection ids that are issued here (RFC 9000, section 5.1): they say which loop of which process has the
//! connection, to those who have the key.
//!
//! ```text
//! id       steering[1]  block[16]
//! block    process[4]  loop[2]  endpoint[2]  mark[2]  random[6]      encrypted with AES-128: one block
//! ```
//!
//! An observer without the key cannot tell two ids of one connection from two of different ones. The steering byte is for
//! a program in the kernel that cannot decrypt: the number of the loop's socket among those of its address, plus a keyed
//! function of the byte behind it.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aws_lc_rs::{hkdf, hmac};
use base::sync::Mutex;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// The length of an id in bytes.
pub(super) const ID_LENGTH: usize = 17;

/// Says that a decrypted block is one: of ids that are not ours one in 65,536 passes.
const MARK: [u8; 2] = [0x51, 0x75];

/// The random number of this process among all that have the same secret.
static PROCESS: LazyLock<u32> = LazyLock::new(|| {
    let mut number = [0; 4];
    // Without randomness no handshake succeeds either.
    let _ = rt::random::fill(&mut number);
    u32::from_be_bytes(number)
});

/// The secret of the server's processes, if no file has one.
static COMMON: Mutex<Option<[u8; 32]>> = Mutex::new(None);

/// What ids, tokens and stateless resets are derived from. They are good for all who have the same.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicSecret([u8; 32]);

/// Nothing of it may reach a log.
impl fmt::Debug for QuicSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicSecret").finish_non_exhaustive()
    }
}

impl QuicSecret {
    /// From the content of a file (`quic_host_key`).
    pub fn of_file(content: &[u8]) -> QuicSecret {
        QuicSecret(derive(content, b"host key"))
    }

    /// The secret that the processes of this server have in common.
    pub fn common() -> QuicSecret {
        let mut common = COMMON.lock();
        let secret = common.get_or_insert_with(|| {
            let mut secret = [0; 32];
            // Without randomness no handshake succeeds either.
            let _ = rt::random::fill(&mut secret);
            secret
        });
        QuicSecret(*secret)
    }

    /// The common secret is this one from now on: the master's.
    pub fn use_here(secret: [u8; 32]) {
        *COMMON.lock() = Some(secret);
    }

    /// Its bytes, for processes that are to have the same.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The key of stateless resets (RFC 9000, section 10.3).
    pub(super) fn reset_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &derive(&self.0, b"stateless reset"))
    }

    /// The key of the tokens in Retry and NEW_TOKEN (RFC 9000, section 8.1).
    pub(super) fn token_key(&self) -> hkdf::Prk {
        hkdf::Salt::new(hkdf::HKDF_SHA256, b"token").extract(&self.0)
    }

    /// Reads and writes ids.
    pub(super) fn id_cipher(&self) -> IdCipher {
        let key = derive(&self.0, b"connection id");
        let mut block_key = [0; 16];
        block_key.copy_from_slice(&key[..16]);
        IdCipher {
            cipher: Aes128::new(&block_key.into()),
            steering: Steering {
                factor: key[16] | 1,
                summand: key[17],
            },
        }
    }

    /// The name under which a loop of a process takes datagrams from other processes.
    pub(super) fn socket_name(&self, process: u32, loop_number: u16) -> String {
        let (process, loop_number) = (process.to_be_bytes(), loop_number.to_be_bytes());
        let name = derive(&self.0, &[b"process", &process[..], &loop_number].concat());
        let hex: String = name[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("weir-quic-{hex}")
    }
}

fn derive(secret: &[u8], what: &[u8]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mut derived = [0; 32];
    derived.copy_from_slice(hmac::sign(&key, what).as_ref());
    derived
}

/// The number of this process in ids.
pub(super) fn this_process() -> u32 {
    *PROCESS
}

/// Who has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdOwner {
    pub(super) process: u32,
    /// The number of the loop in its process.
    pub(super) loop_number: u16,
    /// The number of the endpoint on its loop.
    pub(super) endpoint: u16,
}

/// The keyed function of the steering byte.
#[derive(Clone, Copy)]
pub(super) struct Steering {
    pub(super) factor: u8,
    pub(super) summand: u8,
}

impl Steering {
    fn hide(self, member: u8, behind: u8) -> u8 {
        let keyed = behind.wrapping_mul(self.factor).wrapping_add(self.summand);
        member ^ keyed
    }
}

/// Reads and writes ids.
#[derive(Clone)]
pub(super) struct IdCipher {
    cipher: Aes128,
    pub(super) steering: Steering,
}

impl IdCipher {
    /// Whose connection has this id; `None`: it was not issued with this key.
    pub(super) fn owner_of(&self, id: &[u8]) -> Option<IdOwner> {
        let block: [u8; 16] = id.get(1..)?.try_into().ok()?;
        let mut block = block.into();
        self.cipher.decrypt_block(&mut block);
        let [p0, p1, p2, p3, l0, l1, e0, e1, m0, m1, ..] = <[u8; 16]>::from(block);
        ([m0, m1] == MARK).then(|| IdOwner {
            process: u32::from_be_bytes([p0, p1, p2, p3]),
            loop_number: u16::from_be_bytes([l0, l1]),
            endpoint: u16::from_be_bytes([e0, e1]),
        })
    }

    fn issue(&self, owner: IdOwner, member: u8) -> [u8; ID_LENGTH] {
        let mut block = [0; 16];
        block[..4].copy_from_slice(&owner.process.to_be_bytes());
        block[4..6].copy_from_slice(&owner.loop_number.to_be_bytes());
        block[6..8].copy_from_slice(&owner.endpoint.to_be_bytes());
        block[8..10].copy_from_slice(&MARK);
        // Without randomness no handshake succeeds either.
        let _ = rt::random::fill(&mut block[10..]);
        let mut encrypted = block.into();
        self.cipher.encrypt_block(&mut encrypted);
        let mut id = [0; ID_LENGTH];
        id[1..].copy_from_slice(&encrypted);
        id[0] = self.steering.hide(member, id[1]);
        id
    }
}

/// Issues the ids of an endpoint.
#[derive(Clone)]
pub(super) struct IdIssuer {
    pub(super) cipher: IdCipher,
    pub(super) owner: IdOwner,
    /// The number of the loop's socket among those of the address.
    pub(super) member: u8,
}

impl ConnectionIdGenerator for IdIssuer {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.cipher.issue(self.owner, self.member))
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.cipher.owner_of(id).map(|_| ()).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        ID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// The destination connection id of a datagram's first packet (RFC 8999, section 5). `None`: too short for one.
pub(super) fn destination_id(datagram: &[u8]) -> Option<&[u8]> {
    match datagram.first()? & 0x80 {
        0 => datagram.get(1..1 + ID_LENGTH),
        _ => {
            let length = usize::from(*datagram.get(5)?);
            datagram.get(6..6 + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: IdOwner = IdOwner {
        process: 0x0102_0304,
        loop_number: 3,
        endpoint: 7,
    };

    #[test]
    fn an_id_tells_its_owner_to_those_with_the_key_only() {
        let cipher = QuicSecret::of_file(b"a").id_cipher();
        let other = QuicSecret::of_file(b"b").id_cipher();
        let (one, two) = (cipher.issue(OWNER, 3), cipher.issue(OWNER, 3));
        assert_ne!(one, two);
        assert_eq!(cipher.owner_of(&one), Some(OWNER));
        assert_ne!(other.owner_of(&one), Some(OWNER));
        for length in 0..ID_LENGTH {
            assert_eq!(cipher.owner_of(&one[..length]), None);
        }
        assert_eq!(cipher.steering.hide(one[0], one[1]), 3);
    }

    #[test]
    fn no_beginning_of_a_datagram_is_read_beyond_its_end() {
        let cipher = QuicSecret::of_file(b"a").id_cipher();
        let short = [&[0x40][..], &cipher.issue(OWNER, 0)].concat();
        for length in 0..=short.len() {
            let found = destination_id(&short[..length]);
            assert_eq!(found.is_some(), length == short.len());
        }
        let long = [0xc0, 0, 0, 0, 1, 2, 7, 7];
        assert_eq!(destination_id(&long), Some(&[7, 7][..]));
        assert_eq!(destination_id(&long[..7]), None);
        assert_eq!(destination_id(&[0x80, 0, 0, 0, 1]), None);
    }
}
