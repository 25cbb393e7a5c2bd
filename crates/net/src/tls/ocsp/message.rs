//! OCSP messages (RFC 6960): requests, and whether a response can be believed.
//!
//! No I/O and no clock. Tags and lengths are parsed by the crate `der`.

use aws_lc_rs::digest;
use der::asn1::{AnyRef, BitStringRef, GeneralizedTime};
use der::{Decode, Reader, SliceReader};

use super::super::certificate::{Certificate, SignedContent};
use super::super::provider::algorithms;
use super::super::verify::is_signed;

/// How far clocks may differ, in seconds; nginx's value.
const CLOCK_SKEW: i64 = 300;
/// How many certificates in a response are looked at: each may cost a signature check.
const MAX_CERTIFICATES: usize = 8;

/// `AlgorithmIdentifier` of SHA-1, which identifies certificates in requests. Responders expect it (RFC 5019), and
/// nothing depends on its strength.
const SHA1: [u8; 11] = [
    0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00,
];
/// `id-pkix-ocsp-basic`, encoded.
const BASIC: [u8; 11] = [
    0x06, 0x09, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01,
];

/// DER tags.
mod tag {
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const OCTETS: u8 = 0x04;
    pub(super) const ENUMERATED: u8 = 0x0a;
    pub(super) const SEQUENCE: u8 = 0x30;
    /// `[0]`, `[1]` and `[2]` that contain other elements.
    pub(super) const CONTEXT_0: u8 = 0xa0;
    pub(super) const CONTEXT_1: u8 = 0xa1;
    pub(super) const CONTEXT_2: u8 = 0xa2;
    /// `[0]` and `[2]` that replace the tag of a simple value.
    pub(super) const PLAIN_0: u8 = 0x80;
    pub(super) const PLAIN_2: u8 = 0x82;
}

/// The `CertID` of a certificate: its issuer and its serial number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CertId {
    issuer_name: [u8; 20],
    issuer_key: [u8; 20],
    /// The content of the INTEGER, compared byte by byte: DER is unique.
    serial: Vec<u8>,
}

/// The status of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertStatus {
    Good,
    Revoked,
    Unknown,
}

impl CertStatus {
    /// The word for it in logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            CertStatus::Good => "good",
            CertStatus::Revoked => "revoked",
            CertStatus::Unknown => "unknown",
        }
    }
}

/// Whose signature a response must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignerPolicy {
    /// The issuer's own, or that of a responder that the issuer has authorized.
    Entitled,
    /// Any whose certificate is included: the client that gets the stapled response verifies it.
    Anybody,
}

/// A response that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OcspAnswer {
    pub(super) status: CertStatus,
    /// Until when it is valid, in seconds; `None`: without limit, newer ones are always available.
    pub(super) until: Option<i64>,
}

impl CertId {
    pub(super) fn of(certificate: &Certificate, issuer: &Certificate) -> CertId {
        CertId {
            issuer_name: sha1(&certificate.issuer),
            issuer_key: sha1(&issuer.key.bits),
            serial: certificate.serial.clone(),
        }
    }

    /// The request about this one certificate. Without a nonce, because responders sign in advance and CDNs cache
    /// the responses (RFC 5019).
    pub(super) fn encode_request(&self) -> Vec<u8> {
        let id = element(
            tag::SEQUENCE,
            &[
                SHA1.to_vec(),
                element(tag::OCTETS, &[self.issuer_name.to_vec()]),
                element(tag::OCTETS, &[self.issuer_key.to_vec()]),
                element(tag::INTEGER, std::slice::from_ref(&self.serial)),
            ],
        );
        // OCSPRequest, TBSRequest, requestList, Request, CertID.
        let nested = |inside| element(tag::SEQUENCE, &[inside]);
        nested(nested(nested(nested(id))))
    }

    /// Whether a `CertID` is this one. Other digests than SHA-1 were not in the request and do not match.
    fn is(&self, reader: &mut SliceReader<'_>) -> der::Result<bool> {
        let algorithm = reader.tlv_bytes()?;
        let name = content(reader, tag::OCTETS)?;
        let key = content(reader, tag::OCTETS)?;
        let serial = content(reader, tag::INTEGER)?;
        // The NULL parameters of the algorithm may be omitted.
        let is_sha1 = algorithm == SHA1 || algorithm[2..] == SHA1[2..SHA1.len() - 2];
        Ok(is_sha1 && name == self.issuer_name && key == self.issuer_key && serial == self.serial)
    }
}

fn sha1(bytes: &[u8]) -> [u8; 20] {
    let mut out = [0; 20];
    out.copy_from_slice(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref());
    out
}

/// Encodes an element. Requests are short: the length has at most two bytes.
fn element(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let length: usize = parts.iter().map(Vec::len).sum();
    let mut out = vec![tag];
    match length {
        0..0x80 => out.push(length as u8),
        0x80..0x100 => out.extend_from_slice(&[0x81, length as u8]),
        _ => out.extend_from_slice(&[0x82, (length >> 8) as u8, length as u8]),
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}

/// The content of the next element, which must have this tag.
fn content<'a>(reader: &mut SliceReader<'a>, tag: u8) -> der::Result<&'a [u8]> {
    if reader.peek_byte() != Some(tag) {
        return Err(reader.error(der::ErrorKind::Failed));
    }
    Ok(AnyRef::decode(reader)?.value())
}

/// The content of the next element if it has this tag.
fn optional<'a>(reader: &mut SliceReader<'a>, tag: u8) -> der::Result<Option<&'a [u8]>> {
    match reader.peek_byte() {
        Some(next) if next == tag => content(reader, tag).map(Some),
        _ => Ok(None),
    }
}

/// Verifies a response about `id`, whose issuer is `issuer`, at a time in seconds. The error is for the log.
pub(super) fn verify_response(
    answer: &[u8],
    id: &CertId,
    issuer: &Certificate,
    signer: SignerPolicy,
    now: i64,
) -> Result<OcspAnswer, String> {
    let malformed = |error: der::Error| format!("malformed OCSP response: {error}");
    let basic = basic(answer).map_err(malformed)??;
    let parts = BasicOcspResponse::read(basic).map_err(malformed)?;
    let signed = SignedContent::parse(basic).ok_or("malformed OCSP response")?;
    // The signature first: nothing in an unsigned response should decide anything.
    check_signature(&parts, &signed, issuer, signer, now)?;
    let answer = parts
        .find(id)
        .map_err(malformed)?
        .ok_or("certificate status not found in the OCSP response")?;
    let SingleResponse {
        status,
        from,
        until,
    } = answer;
    if from > now + CLOCK_SKEW || until.is_some_and(|until| until < now - CLOCK_SKEW) {
        return Err("OCSP_check_validity() failed: the response is not currently valid".to_owned());
    }
    Ok(OcspAnswer { status, until })
}

/// Parses a response, signed or not, and returns whether it is believed. Only for fuzzing: it also reaches the code
/// behind the signature check.
#[doc(hidden)]
pub fn is_believed(answer: &[u8], issuer: &[u8]) -> bool {
    let Some(issuer) = Certificate::parse(issuer) else {
        return false;
    };
    let id = CertId {
        issuer_name: sha1(&issuer.subject),
        issuer_key: sha1(&issuer.key.bits),
        serial: vec![0x10, 0x02],
    };
    if let Ok(Ok(basic)) = basic(answer)
        && let Ok(parts) = BasicOcspResponse::read(basic)
    {
        // Only that it ends matters.
        let _ = parts.find(&id);
    }
    let believed = |signer| verify_response(answer, &id, &issuer, signer, 1_800_000_000).is_ok();
    // The same for the weaker check.
    let _ = believed(SignerPolicy::Anybody);
    believed(SignerPolicy::Entitled)
}

/// The `BasicOCSPResponse` within an `OCSPResponse`.
fn basic(answer: &[u8]) -> der::Result<Result<&[u8], String>> {
    let mut reader = SliceReader::new(answer)?;
    let whole = content(&mut reader, tag::SEQUENCE)?;
    let mut reader = SliceReader::new(whole)?;
    let status = content(&mut reader, tag::ENUMERATED)?;
    if status != [0] {
        let number = status.first().copied().unwrap_or_default();
        let name = match number {
            1 => "malformedrequest",
            2 => "internalerror",
            3 => "trylater",
            5 => "sigrequired",
            6 => "unauthorized",
            _ => "unknown",
        };
        return Ok(Err(format!(
            "OCSP response not successful ({number}: {name})"
        )));
    }
    let mut reader = SliceReader::new(content(&mut reader, tag::CONTEXT_0)?)?;
    let mut reader = SliceReader::new(content(&mut reader, tag::SEQUENCE)?)?;
    if reader.tlv_bytes()? != BASIC {
        return Ok(Err("OCSP response has an unknown type".to_owned()));
    }
    content(&mut reader, tag::OCTETS).map(Ok)
}

/// The parts of a `BasicOCSPResponse`.
struct BasicOcspResponse<'a> {
    /// The signer: by name or by the digest of its key.
    responder: ResponderId<'a>,
    /// The list of `SingleResponse`.
    responses: &'a [u8],
    certificates: Vec<&'a [u8]>,
}

enum ResponderId<'a> {
    Name(&'a [u8]),
    Key(&'a [u8]),
}

/// The response about one certificate.
struct SingleResponse {
    status: CertStatus,
    from: i64,
    until: Option<i64>,
}

impl<'a> BasicOcspResponse<'a> {
    fn read(basic: &'a [u8]) -> der::Result<BasicOcspResponse<'a>> {
        let mut reader = SliceReader::new(basic)?;
        let mut outer = SliceReader::new(content(&mut reader, tag::SEQUENCE)?)?;
        let mut data = SliceReader::new(content(&mut outer, tag::SEQUENCE)?)?;
        // The version, which has only one value.
        optional(&mut data, tag::CONTEXT_0)?;
        let responder = match optional(&mut data, tag::CONTEXT_1)? {
            Some(name) => ResponderId::Name(name),
            None => {
                let mut key = SliceReader::new(content(&mut data, tag::CONTEXT_2)?)?;
                ResponderId::Key(content(&mut key, tag::OCTETS)?)
            }
        };
        let _produced = GeneralizedTime::decode(&mut data)?;
        let responses = content(&mut data, tag::SEQUENCE)?;
        // The algorithm and the signature are parsed with the signed content.
        content(&mut outer, tag::SEQUENCE)?;
        BitStringRef::decode(&mut outer)?;
        let mut certificates = Vec::new();
        if let Some(list) = optional(&mut outer, tag::CONTEXT_0)? {
            let mut reader = SliceReader::new(list)?;
            let mut reader = SliceReader::new(content(&mut reader, tag::SEQUENCE)?)?;
            while !reader.is_finished() && certificates.len() < MAX_CERTIFICATES {
                certificates.push(reader.tlv_bytes()?);
            }
        }
        Ok(BasicOcspResponse {
            responder,
            responses,
            certificates,
        })
    }

    fn find(&self, id: &CertId) -> der::Result<Option<SingleResponse>> {
        let mut list = SliceReader::new(self.responses)?;
        while !list.is_finished() {
            let mut single = SliceReader::new(content(&mut list, tag::SEQUENCE)?)?;
            let mut known = SliceReader::new(content(&mut single, tag::SEQUENCE)?)?;
            if !id.is(&mut known)? {
                continue;
            }
            let status = match single.peek_byte() {
                Some(tag::PLAIN_0) => CertStatus::Good,
                Some(tag::CONTEXT_1) => CertStatus::Revoked,
                Some(tag::PLAIN_2) => CertStatus::Unknown,
                _ => return Err(single.error(der::ErrorKind::Failed)),
            };
            single.tlv_bytes()?;
            let from = seconds(GeneralizedTime::decode(&mut single)?);
            let until = match optional(&mut single, tag::CONTEXT_0)? {
                Some(time) => Some(seconds(GeneralizedTime::from_der(time)?)),
                None => None,
            };
            return Ok(Some(SingleResponse {
                status,
                from,
                until,
            }));
        }
        Ok(None)
    }
}

fn seconds(time: GeneralizedTime) -> i64 {
    i64::try_from(time.to_unix_duration().as_secs()).unwrap_or(i64::MAX)
}

/// Checks who signed the response. The issuer is tried first: it may sign itself and then includes no certificate.
fn check_signature(
    parts: &BasicOcspResponse<'_>,
    signed: &SignedContent,
    issuer: &Certificate,
    signer: SignerPolicy,
    now: i64,
) -> Result<(), String> {
    let algorithms = algorithms();
    let has_signed = |certificate: &Certificate| {
        let fits = match parts.responder {
            ResponderId::Name(name) => certificate.subject == name,
            ResponderId::Key(key) => sha1(&certificate.key.bits) == key,
        };
        fits && is_signed(signed, certificate, &algorithms)
    };
    if has_signed(issuer) {
        return Ok(());
    }
    let failed = "OCSP_basic_verify() failed";
    let sent = parts.certificates.iter();
    let Some(found) = sent
        .filter_map(|der| Certificate::parse(der))
        .find(has_signed)
    else {
        return Err(format!("{failed}: the signer is unknown"));
    };
    let is_entitled = || {
        // RFC 6960, section 4.2.2.2: a delegated responder has a certificate for this purpose, issued directly by
        // the issuer in question.
        found.purposes.is_some_and(|purposes| purposes.ocsp)
            && found.issuer == issuer.subject
            && (found.not_before..=found.not_after).contains(&now)
            && is_signed(&found.signed, issuer, &algorithms)
    };
    match signer == SignerPolicy::Anybody || is_entitled() {
        true => Ok(()),
        false => Err(format!("{failed}: the signer is not authorised")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> CertId {
        CertId {
            issuer_name: [1; 20],
            issuer_key: [2; 20],
            serial: vec![0x10, 0x02],
        }
    }

    #[test]
    fn a_question_is_as_rfc_6960_has_it() {
        let question = id().encode_request();
        let mut reader = SliceReader::new(&question).expect("it is short");
        let mut inside = &question[..];
        for _ in 0..5 {
            reader = SliceReader::new(inside).expect("it is short");
            inside = content(&mut reader, tag::SEQUENCE).expect("nested sequences");
        }
        assert!(reader.is_finished());
        let mut reader = SliceReader::new(inside).expect("it is short");
        assert!(id().is(&mut reader).expect("a name"));
        assert!(reader.is_finished());
    }

    #[test]
    fn refusals_have_their_names_and_nonsense_is_an_error() {
        let refusal = [0x30, 0x03, 0x0a, 0x01, 0x06];
        let message = basic(&refusal).expect("well-formed").expect_err("refused");
        assert_eq!(message, "OCSP response not successful (6: unauthorized)");
        for length in 0..refusal.len() {
            assert!(basic(&refusal[..length]).is_err());
        }
        assert!(basic(&[0x30, 0x03, 0x0a, 0x01, 0x00]).is_err());
    }
}
