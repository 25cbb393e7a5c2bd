//! AES in the modes that OpenSSL's names end with (NIST SP 800-38A, and 800-38D for `gcm`), for `resty.aes`.

use std::rc::Rc;

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes192, Aes256};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;

use super::super::arguments::bytes;
use super::super::output::answer;
use super::super::{Called, ONE};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::{Failure, Stack, Value, fail};

/// The length of a block, in bytes.
const BLOCK: usize = 16;

type Block = [u8; BLOCK];

enum Cipher {
    Aes128(Box<Aes128>),
    Aes192(Box<Aes192>),
    Aes256(Box<Aes256>),
}

impl Cipher {
    fn new(key: &[u8]) -> Option<Cipher> {
        Some(match key.len() {
            16 => Cipher::Aes128(Box::new(Aes128::new_from_slice(key).ok()?)),
            24 => Cipher::Aes192(Box::new(Aes192::new_from_slice(key).ok()?)),
            32 => Cipher::Aes256(Box::new(Aes256::new_from_slice(key).ok()?)),
            _ => return None,
        })
    }

    fn encrypt(&self, block: &Block) -> Block {
        let mut block = (*block).into();
        match self {
            Cipher::Aes128(cipher) => cipher.encrypt_block(&mut block),
            Cipher::Aes192(cipher) => cipher.encrypt_block(&mut block),
            Cipher::Aes256(cipher) => cipher.encrypt_block(&mut block),
        }
        block.into()
    }

    fn decrypt(&self, block: &Block) -> Block {
        let mut block = (*block).into();
        match self {
            Cipher::Aes128(cipher) => cipher.decrypt_block(&mut block),
            Cipher::Aes192(cipher) => cipher.decrypt_block(&mut block),
            Cipher::Aes256(cipher) => cipher.decrypt_block(&mut block),
        }
        block.into()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Ecb,
    Cbc,
    Cfb1,
    Cfb8,
    Cfb128,
    Ofb,
    Ctr,
    Gcm,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Encrypt,
    Decrypt,
}

struct Aes {
    cipher: Cipher,
    mode: Mode,
    /// 16 bytes, but for `gcm`.
    vector: Vec<u8>,
    padding: bool,
}

static AES: Class = Class {
    name: "weir.aes",
    shape: Shape::Table,
    methods: &[("encrypt", encrypt), ("decrypt", decrypt)],
};

/// A cipher: the name of its mode, the key, the initialisation vector, whether the last block is padded.
pub(super) fn new(stack: &Stack) -> Called {
    let mode = match bytes(stack, 1)? {
        b"ecb" => Mode::Ecb,
        b"cbc" => Mode::Cbc,
        b"cfb1" => Mode::Cfb1,
        b"cfb8" => Mode::Cfb8,
        b"cfb128" => Mode::Cfb128,
        b"ofb" => Mode::Ofb,
        b"ctr" => Mode::Ctr,
        b"gcm" => Mode::Gcm,
        _ => return answer(stack, Value::failure("failed to init ctx")),
    };
    let Some(cipher) = Cipher::new(bytes(stack, 2)?) else {
        return answer(stack, Value::failure("bad key length"));
    };
    let mut vector = bytes(stack, 3)?.to_vec();
    match mode {
        Mode::Gcm if vector.is_empty() => {
            return answer(stack, Value::failure("failed to set IV length"));
        }
        Mode::Gcm => {}
        _ => vector.resize(BLOCK, 0),
    }
    let aes = Aes {
        cipher,
        mode,
        vector,
        padding: stack.boolean(4),
    };
    object::push(stack, &AES, Rc::new(aes));
    ONE
}

fn this(stack: &Stack) -> Result<Rc<Aes>, Failure> {
    object::get(stack, 1, "cipher")
}

fn encrypt(stack: &Stack) -> Called {
    let aes = this(stack)?;
    let text = bytes(stack, 2)?;
    if aes.mode == Mode::Gcm {
        let data = optional(stack, 3)?;
        let (content, tag) = aes.seal(text, data);
        stack.push_table(2, 0);
        stack.push_bytes(&content);
        stack.set_element(-2, 1);
        stack.push_bytes(tag);
        stack.set_element(-2, 2);
        return ONE;
    }
    match aes.run(text, Way::Encrypt) {
        Some(content) => stack.push_bytes(&content),
        None => return answer(stack, Value::failure("EVP_EncryptFinal_ex failed")),
    }
    ONE
}

fn decrypt(stack: &Stack) -> Called {
    let aes = this(stack)?;
    let content = bytes(stack, 2)?;
    let text = match aes.mode {
        Mode::Gcm => {
            let (tag, data) = (optional(stack, 3)?, optional(stack, 4)?);
            aes.open(content, tag, data)
        }
        _ => aes.run(content, Way::Decrypt),
    };
    match text {
        Some(text) => stack.push_bytes(&text),
        None => return answer(stack, Value::failure("EVP_DecryptFinal_ex failed")),
    }
    ONE
}

fn optional(stack: &Stack, at: i32) -> Result<&[u8], Failure> {
    match stack.is_nil(at) {
        true => Ok(b""),
        false => match stack.bytes(at) {
            Some(bytes) => Ok(bytes),
            None => fail(format!("bad argument #{at} (string expected)")),
        },
    }
}

/// A block of at most 16 bytes, with zeros after them.
fn block_of(bytes: &[u8]) -> Block {
    let mut block = [0; BLOCK];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

fn mix(block: &mut Block, other: &Block) {
    for (byte, other) in block.iter_mut().zip(other) {
        *byte ^= other;
    }
}

impl Aes {
    fn run(&self, input: &[u8], way: Way) -> Option<Vec<u8>> {
        match self.mode {
            Mode::Ecb | Mode::Cbc => match way {
                Way::Encrypt => self.encrypt_blocks(input),
                Way::Decrypt => self.decrypt_blocks(input),
            },
            Mode::Cfb1 => Some(self.feed_bits(input, way)),
            Mode::Cfb8 => Some(self.feed_back(input, way, 1)),
            Mode::Cfb128 => Some(self.feed_back(input, way, BLOCK)),
            Mode::Ofb | Mode::Ctr => Some(self.key_stream(input)),
            // Has a tag: `seal` and `open`.
            Mode::Gcm => None,
        }
    }

    fn encrypt_blocks(&self, input: &[u8]) -> Option<Vec<u8>> {
        let mut input = input.to_vec();
        if self.padding {
            // PKCS #7: at least one byte, each of which says how many they are.
            let more = BLOCK - input.len() % BLOCK;
            input.resize(input.len() + more, more as u8);
        } else if !input.len().is_multiple_of(BLOCK) {
            return None;
        }
        let mut out = Vec::with_capacity(input.len());
        let mut last = block_of(&self.vector);
        for chunk in input.chunks_exact(BLOCK) {
            let mut block = block_of(chunk);
            if self.mode == Mode::Cbc {
                mix(&mut block, &last);
            }
            last = self.cipher.encrypt(&block);
            out.extend_from_slice(&last);
        }
        Some(out)
    }

    fn decrypt_blocks(&self, input: &[u8]) -> Option<Vec<u8>> {
        if !input.len().is_multiple_of(BLOCK) || (self.padding && input.is_empty()) {
            return None;
        }
        let mut out = Vec::with_capacity(input.len());
        let mut last = block_of(&self.vector);
        for chunk in input.chunks_exact(BLOCK) {
            let sealed = block_of(chunk);
            let mut block = self.cipher.decrypt(&sealed);
            if self.mode == Mode::Cbc {
                mix(&mut block, &last);
            }
            last = sealed;
            out.extend_from_slice(&block);
        }
        if self.padding {
            let more = usize::from(*out.last()?);
            let kept = out.len().checked_sub(more)?;
            if more == 0 || more > BLOCK || out[kept..].iter().any(|b| usize::from(*b) != more) {
                return None;
            }
            out.truncate(kept);
        }
        Some(out)
    }

    /// Cipher feedback by `step` bytes at a time.
    fn feed_back(&self, input: &[u8], way: Way, step: usize) -> Vec<u8> {
        let mut register = block_of(&self.vector);
        let mut out = Vec::with_capacity(input.len());
        for chunk in input.chunks(step) {
            let stream = self.cipher.encrypt(&register);
            register.copy_within(chunk.len().., 0);
            for (n, byte) in chunk.iter().enumerate() {
                let made = byte ^ stream[n];
                out.push(made);
                register[BLOCK - chunk.len() + n] = match way {
                    Way::Encrypt => made,
                    Way::Decrypt => *byte,
                };
            }
        }
        out
    }

    /// Cipher feedback by a bit at a time.
    fn feed_bits(&self, input: &[u8], way: Way) -> Vec<u8> {
        let mut register = u128::from_be_bytes(block_of(&self.vector));
        let mut out = Vec::with_capacity(input.len());
        for byte in input {
            let mut made = 0;
            for shift in (0..8).rev() {
                let stream = self.cipher.encrypt(&register.to_be_bytes())[0] >> 7;
                let bit = (byte >> shift) & 1;
                let other = bit ^ stream;
                made |= other << shift;
                let fed = match way {
                    Way::Encrypt => other,
                    Way::Decrypt => bit,
                };
                register = (register << 1) | u128::from(fed);
            }
            out.push(made);
        }
        out
    }

    /// Output feedback, or a counter of 128 bits.
    fn key_stream(&self, input: &[u8]) -> Vec<u8> {
        let mut register = block_of(&self.vector);
        let mut out = Vec::with_capacity(input.len());
        for chunk in input.chunks(BLOCK) {
            let stream = self.cipher.encrypt(&register);
            out.extend(chunk.iter().zip(stream).map(|(byte, key)| byte ^ key));
            register = match self.mode {
                Mode::Ofb => stream,
                _ => u128::from_be_bytes(register).wrapping_add(1).to_be_bytes(),
            };
        }
        out
    }

    /// The hash of GCM, its key made of the cipher's.
    fn ghash(&self) -> GHash {
        GHash::new(&self.cipher.encrypt(&[0; BLOCK]).into())
    }

    /// The first counter of GCM (NIST SP 800-38D, section 7.1, step 2).
    fn first_counter(&self) -> Block {
        if self.vector.len() == 12 {
            let mut block = block_of(&self.vector);
            block[BLOCK - 1] = 1;
            return block;
        }
        let mut hash = self.ghash();
        hash.update_padded(&self.vector);
        hash.update(&[lengths(0, self.vector.len()).into()]);
        hash.finalize().into()
    }

    /// GCM's counter, of which only the last four bytes count, from the one after the first on.
    fn counted(&self, input: &[u8], first: &Block) -> Vec<u8> {
        let mut counter = *first;
        let mut out = Vec::with_capacity(input.len());
        for chunk in input.chunks(BLOCK) {
            let [.., a, b, c, d] = counter;
            let next = u32::from_be_bytes([a, b, c, d]).wrapping_add(1);
            counter[12..].copy_from_slice(&next.to_be_bytes());
            let stream = self.cipher.encrypt(&counter);
            out.extend(chunk.iter().zip(stream).map(|(byte, key)| byte ^ key));
        }
        out
    }

    fn tag(&self, content: &[u8], data: &[u8], first: &Block) -> Block {
        let mut hash = self.ghash();
        hash.update_padded(data);
        hash.update_padded(content);
        hash.update(&[lengths(data.len(), content.len()).into()]);
        let mut tag: Block = hash.finalize().into();
        mix(&mut tag, &self.cipher.encrypt(first));
        tag
    }

    fn seal(&self, text: &[u8], data: &[u8]) -> (Vec<u8>, Block) {
        let first = self.first_counter();
        let content = self.counted(text, &first);
        let tag = self.tag(&content, data, &first);
        (content, tag)
    }

    fn open(&self, content: &[u8], tag: &[u8], data: &[u8]) -> Option<Vec<u8>> {
        let first = self.first_counter();
        let wanted = self.tag(content, data, &first);
        let same = aws_lc_rs::constant_time::verify_slices_are_equal(&wanted, tag);
        same.ok().map(|()| self.counted(content, &first))
    }
}

/// Two lengths in bits, as GCM hashes them at the end.
fn lengths(data: usize, content: usize) -> Block {
    let mut block = [0; BLOCK];
    block[..8].copy_from_slice(&(data as u64 * 8).to_be_bytes());
    block[8..].copy_from_slice(&(content as u64 * 8).to_be_bytes());
    block
}
