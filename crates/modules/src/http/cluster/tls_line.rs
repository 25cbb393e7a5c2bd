//! The `tls` line of a `cluster` block.
//!
//! All files are read with the configuration, so that a reload with a broken certificate is refused and the members go on
//! with the former one. What is built here serves both directions: see `net::cluster::MemberTls`.

use std::path::PathBuf;
use std::sync::Arc;

use bstr::{BString, ByteSlice};
use conf::directive_contexts::CLUSTER;
use conf::{Arity, Diagnostic, Directive, DirectiveLine, PathUse, RepeatRule, Setter, parse};
use net::cluster::MemberTls;
use net::tls::{TlsIdentity, load_file};

use super::ClusterDraft;

/// `tls`.
pub(super) const TLS_ROW: Directive<ClusterDraft> = Directive {
    name: "tls",
    syntax: "certificate=file certificate_key=file trusted_certificate=file [name=text]",
    default: None,
    contexts: CLUSTER,
    since: "0.3",
    doc: "Members speak TLS 1.3 to each other, and both sides show a certificate: this one, which has to be signed by an \
          authority of `trusted_certificate`, and good for servers and for clients. That authority should sign for nobody \
          else; if it does, `name` is a name that all members' certificates have, and no others. A `listen … cluster=name` \
          then needs no `ssl`, and no certificate of its server.",
    set: Setter::Custom(Arity::between(3, 4), RepeatRule::Once, |draft, line| {
        draft.tls = Some(Arc::new(read_tls(line)?));
        Ok(())
    }),
};

fn read_tls(line: &mut DirectiveLine) -> Result<MemberTls, Diagnostic> {
    let (mut certificate, mut key, mut trusted) = (None, None, None);
    let mut name: Option<BString> = None;
    for index in 0..line.args().len() {
        let text = line.text(index).to_owned();
        let (word, value) = text.split_once_str("=").unwrap_or_default();
        if value.is_empty() {
            return Err(line.invalid_parameter(index));
        }
        let path = || -> PathBuf {
            let path = parse::path(value.as_bstr());
            line.level.build.in_conf_prefix(PathUse::Opened, path)
        };
        match word {
            b"certificate" => certificate = Some(path()),
            b"certificate_key" => key = Some(path()),
            b"trusted_certificate" => trusted = Some(path()),
            b"name" => name = Some(value.into()),
            _ => return Err(line.invalid_parameter(index)),
        }
    }
    let (Some(certificate), Some(key), Some(trusted)) = (certificate, key, trusted) else {
        let error =
            line.error("\"tls\" needs certificate=, certificate_key= and trusted_certificate=");
        return Err(error.note("members show each other certificates of one authority"));
    };
    // The authority first: without it the certificate would be of no use.
    let file = trusted.display().to_string();
    let files = &mut line.level.build.files;
    let authority = load_file("certificate", &trusted, &mut |path| files.read(path));
    let bytes = |path: &PathBuf| BString::from(path.as_os_str().as_encoded_bytes());
    let (certificate, key) = (bytes(&certificate), bytes(&key));
    let identity = TlsIdentity::load_shared(certificate.as_ref(), key.as_ref(), &[], &mut |path| {
        files.read(path)
    });
    let name = name.as_ref().map(|name| name.as_bstr());
    let built = identity.and_then(|identity| MemberTls::new(&identity, (&authority?, &file), name));
    built.map_err(|problem| line.error(problem.message))
}
