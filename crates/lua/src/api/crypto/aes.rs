//! AES in the modes of OpenSSL (NIST SP 800-38A; 800-38D for `gcm`), for `resty.aes`.
//!
//! The modes are written out here on top of the block cipher: `resty.aes` offers all of OpenSSL's,
//! and what was encrypted with nginx must stay readable.

use std::rc::Rc;

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes192, Aes256};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;

use super::super::arguments::bytes;
use super::super::called::answer;
use super::super::{CallResult, ONE};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::{LuaError, LuaStack, LuaValue, fail};

/// The block size, in bytes.
const BLOCK: usize = 16;

type AesBlock = [u8; BLOCK];

/// AES with an expanded key, by the key's length.
enum BlockCipher {
    Aes128(Box<Aes128>),
    Aes192(Box<Aes192>),
    Aes256(Box<Aes256>),
}

impl BlockCipher {
    fn new(key: &[u8]) -> Option<BlockCipher> {
        Some(match key.len() {
            16 => BlockCipher::Aes128(Box::new(Aes128::new_from_slice(key).ok()?)),
            24 => BlockCipher::Aes192(Box::new(Aes192::new_from_slice(key).ok()?)),
            32 => BlockCipher::Aes256(Box::new(Aes256::new_from_slice(key).ok()?)),
            _ => return None,
        })
    }

    /// Encrypts one block. Every mode but ECB and CBC needs this direction only.
    fn encrypt(&self, block: &AesBlock) -> AesBlock {
        let mut block = (*block).into();
        match self {
            BlockCipher::Aes128(cipher) => cipher.encrypt_block(&mut block),
            BlockCipher::Aes192(cipher) => cipher.encrypt_block(&mut block),
            BlockCipher::Aes256(cipher) => cipher.encrypt_block(&mut block),
        }
        block.into()
    }

    /// Decrypts one block, for ECB and CBC.
    fn decrypt(&self, block: &AesBlock) -> AesBlock {
        let mut block = (*block).into();
        match self {
            BlockCipher::Aes128(cipher) => cipher.decrypt_block(&mut block),
            BlockCipher::Aes192(cipher) => cipher.decrypt_block(&mut block),
            BlockCipher::Aes256(cipher) => cipher.decrypt_block(&mut block),
        }
        block.into()
    }
}

/// The modes of operation; the number is that of the feedback in bits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CipherMode {
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
enum CipherDirection {
    Encrypt,
    Decrypt,
}

/// The object that scripts hold.
struct AesCipher {
    cipher: BlockCipher,
    mode: CipherMode,
    /// The initialization vector: 16 bytes, or any number in `gcm`.
    vector: Vec<u8>,
    /// PKCS #7 padding, for the block modes.
    padding: bool,
}

static AES: ObjectClass = ObjectClass {
    name: "weir.aes",
    shape: ObjectShape::Table,
    methods: &[("encrypt", encrypt), ("decrypt", decrypt)],
};

/// Creates a cipher: mode, key, initialization vector, whether to pad.
pub(super) fn new(stack: &LuaStack) -> CallResult {
    let mode = match bytes(stack, 1)? {
        b"ecb" => CipherMode::Ecb,
        b"cbc" => CipherMode::Cbc,
        b"cfb1" => CipherMode::Cfb1,
        b"cfb8" => CipherMode::Cfb8,
        b"cfb128" => CipherMode::Cfb128,
        b"ofb" => CipherMode::Ofb,
        b"ctr" => CipherMode::Ctr,
        b"gcm" => CipherMode::Gcm,
        _ => return answer(stack, LuaValue::failure("failed to init ctx")),
    };
    let Some(cipher) = BlockCipher::new(bytes(stack, 2)?) else {
        return answer(stack, LuaValue::failure("bad key length"));
    };
    let mut vector = bytes(stack, 3)?.to_vec();
    match mode {
        CipherMode::Gcm if vector.is_empty() => {
            return answer(stack, LuaValue::failure("failed to set IV length"));
        }
        CipherMode::Gcm => {}
        // OpenSSL reads 16 bytes whatever was given; zeros stand for what is missing.
        _ => vector.resize(BLOCK, 0),
    }
    let aes = AesCipher {
        cipher,
        mode,
        vector,
        padding: stack.boolean(4),
    };
    object::push(stack, &AES, Rc::new(aes));
    ONE
}

fn this_cipher(stack: &LuaStack) -> Result<Rc<AesCipher>, LuaError> {
    object::get(stack, 1, "cipher")
}

/// `aes:encrypt(text, additional_data)`: in `gcm` the ciphertext and the tag.
fn encrypt(stack: &LuaStack) -> CallResult {
    let aes = this_cipher(stack)?;
    let text = bytes(stack, 2)?;
    if aes.mode == CipherMode::Gcm {
        let data = optional(stack, 3)?;
        let (content, tag) = aes.seal(text, data);
        stack.push_table(2, 0);
        stack.push_bytes(&content);
        stack.set_element(-2, 1);
        stack.push_bytes(tag);
        stack.set_element(-2, 2);
        return ONE;
    }
    match aes.run(text, CipherDirection::Encrypt) {
        Some(content) => stack.push_bytes(&content),
        None => return answer(stack, LuaValue::failure("EVP_EncryptFinal_ex failed")),
    }
    ONE
}

/// `aes:decrypt(text, tag, additional_data)`.
fn decrypt(stack: &LuaStack) -> CallResult {
    let aes = this_cipher(stack)?;
    let content = bytes(stack, 2)?;
    let text = match aes.mode {
        CipherMode::Gcm => {
            let (tag, data) = (optional(stack, 3)?, optional(stack, 4)?);
            aes.open(content, tag, data)
        }
        _ => aes.run(content, CipherDirection::Decrypt),
    };
    match text {
        Some(text) => stack.push_bytes(&text),
        None => return answer(stack, LuaValue::failure("EVP_DecryptFinal_ex failed")),
    }
    ONE
}

/// An optional string argument.
fn optional(stack: &LuaStack, at: i32) -> Result<&[u8], LuaError> {
    match stack.is_nil(at) {
        true => Ok(b""),
        false => match stack.bytes(at) {
            Some(bytes) => Ok(bytes),
            None => fail(format!("bad argument #{at} (string expected)")),
        },
    }
}

/// At most 16 bytes as a block, padded with zeros.
fn block_of(bytes: &[u8]) -> AesBlock {
    let mut block = [0; BLOCK];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

/// XORs one block into another.
fn xor_into(block: &mut AesBlock, other: &AesBlock) {
    for (byte, other) in block.iter_mut().zip(other) {
        *byte ^= other;
    }
}

impl AesCipher {
    /// Encrypts or decrypts in any mode without a tag; `None` if the input's length or padding is
    /// wrong.
    fn run(&self, input: &[u8], way: CipherDirection) -> Option<Vec<u8>> {
        match self.mode {
            CipherMode::Ecb | CipherMode::Cbc => match way {
                CipherDirection::Encrypt => self.encrypt_blocks(input),
                CipherDirection::Decrypt => self.decrypt_blocks(input),
            },
            CipherMode::Cfb1 => Some(self.cfb1(input, way)),
            CipherMode::Cfb8 => Some(self.cfb(input, way, 1)),
            CipherMode::Cfb128 => Some(self.cfb(input, way, BLOCK)),
            CipherMode::Ofb | CipherMode::Ctr => Some(self.key_stream(input)),
            // It has a tag: see `seal` and `open`.
            CipherMode::Gcm => None,
        }
    }

    /// ECB and CBC.
    fn encrypt_blocks(&self, input: &[u8]) -> Option<Vec<u8>> {
        let mut input = input.to_vec();
        if self.padding {
            // PKCS #7 padding: at least one byte; each byte is the number of them.
            let more = BLOCK - input.len() % BLOCK;
            input.resize(input.len() + more, more as u8);
        } else if !input.len().is_multiple_of(BLOCK) {
            return None;
        }
        let mut out = Vec::with_capacity(input.len());
        let mut last = block_of(&self.vector);
        for chunk in input.chunks_exact(BLOCK) {
            let mut block = block_of(chunk);
            if self.mode == CipherMode::Cbc {
                xor_into(&mut block, &last);
            }
            last = self.cipher.encrypt(&block);
            out.extend_from_slice(&last);
        }
        Some(out)
    }

    /// ECB and CBC.
    fn decrypt_blocks(&self, input: &[u8]) -> Option<Vec<u8>> {
        // Padding always adds something, so padded data has at least one block.
        if !input.len().is_multiple_of(BLOCK) || (self.padding && input.is_empty()) {
            return None;
        }
        let mut out = Vec::with_capacity(input.len());
        let mut last = block_of(&self.vector);
        for chunk in input.chunks_exact(BLOCK) {
            let sealed = block_of(chunk);
            let mut block = self.cipher.decrypt(&sealed);
            if self.mode == CipherMode::Cbc {
                xor_into(&mut block, &last);
            }
            // The chain is made of ciphertext in both directions.
            last = sealed;
            out.extend_from_slice(&block);
        }
        if self.padding {
            // With a wrong key this is a random byte: nothing about it may be believed.
            let more = usize::from(*out.last()?);
            let kept = out.len().checked_sub(more)?;
            if more == 0 || more > BLOCK || out[kept..].iter().any(|b| usize::from(*b) != more) {
                return None;
            }
            out.truncate(kept);
        }
        Some(out)
    }

    /// CFB with segments of `step` bytes (SP 800-38A, section 6.3).
    fn cfb(&self, input: &[u8], way: CipherDirection, step: usize) -> Vec<u8> {
        let mut register = block_of(&self.vector);
        let mut out = Vec::with_capacity(input.len());
        for chunk in input.chunks(step) {
            let stream = self.cipher.encrypt(&register);
            // The register moves on by what was used, and ciphertext follows, whichever side that
            // is.
            register.copy_within(chunk.len().., 0);
            for (n, byte) in chunk.iter().enumerate() {
                let made = byte ^ stream[n];
                out.push(made);
                register[BLOCK - chunk.len() + n] = match way {
                    CipherDirection::Encrypt => made,
                    CipherDirection::Decrypt => *byte,
                };
            }
        }
        out
    }

    /// CFB with segments of one bit.
    fn cfb1(&self, input: &[u8], way: CipherDirection) -> Vec<u8> {
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
                    CipherDirection::Encrypt => other,
                    CipherDirection::Decrypt => bit,
                };
                register = (register << 1) | u128::from(fed);
            }
            out.push(made);
        }
        out
    }

    /// OFB and CTR, in which both directions are the same.
    fn key_stream(&self, input: &[u8]) -> Vec<u8> {
        let mut register = block_of(&self.vector);
        let mut out = Vec::with_capacity(input.len());
        for chunk in input.chunks(BLOCK) {
            let stream = self.cipher.encrypt(&register);
            out.extend(chunk.iter().zip(stream).map(|(byte, key)| byte ^ key));
            register = match self.mode {
                CipherMode::Ofb => stream,
                // OpenSSL counts all 16 bytes of the block, unlike GCM.
                _ => u128::from_be_bytes(register).wrapping_add(1).to_be_bytes(),
            };
        }
        out
    }

    /// GHASH, whose key is the encrypted zero block.
    fn ghash(&self) -> GHash {
        GHash::new(&self.cipher.encrypt(&[0; BLOCK]).into())
    }

    /// GCM's first counter block (SP 800-38D, section 7.1, step 2).
    fn first_counter(&self) -> AesBlock {
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

    /// GCTR from the block after `first`: only the last four bytes of the counter block are counted
    /// up.
    fn gctr(&self, input: &[u8], first: &AesBlock) -> Vec<u8> {
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

    /// The authentication tag.
    fn tag(&self, content: &[u8], data: &[u8], first: &AesBlock) -> AesBlock {
        let mut hash = self.ghash();
        // The order and the padding of SP 800-38D, section 7.1, step 5.
        hash.update_padded(data);
        hash.update_padded(content);
        hash.update(&[lengths(data.len(), content.len()).into()]);
        let mut tag: AesBlock = hash.finalize().into();
        xor_into(&mut tag, &self.cipher.encrypt(first));
        tag
    }

    /// GCM encryption: ciphertext and tag.
    fn seal(&self, text: &[u8], data: &[u8]) -> (Vec<u8>, AesBlock) {
        let first = self.first_counter();
        let content = self.gctr(text, &first);
        let tag = self.tag(&content, data, &first);
        (content, tag)
    }

    /// GCM decryption; `None` if the tag does not match, which is compared in constant time.
    fn open(&self, content: &[u8], tag: &[u8], data: &[u8]) -> Option<Vec<u8>> {
        let first = self.first_counter();
        let wanted = self.tag(content, data, &first);
        // Before anything is decrypted: no byte of a forged text reaches the script.
        let same = aws_lc_rs::constant_time::verify_slices_are_equal(&wanted, tag);
        same.ok().map(|()| self.gctr(content, &first))
    }
}

/// Two lengths in bits, the last block that GCM hashes.
fn lengths(data: usize, content: usize) -> AesBlock {
    let mut block = [0; BLOCK];
    block[..8].copy_from_slice(&(data as u64 * 8).to_be_bytes());
    block[8..].copy_from_slice(&(content as u64 * 8).to_be_bytes());
    block
}
