//! Whatever an ACME server answers, the crate that reads it behind our own look at it does not panic, and no wait is longer
//! than a day.
#![no_main]

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use instant_acme::{
    Account, BodyWrapper, BytesResponse, CertificateIdentifier, Error, HttpClient, Identifier,
    NewAccount, NewOrder,
};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/modules/src/http/acme/answer_http_challenge.rs"]
mod answer_http_challenge;

/// Answers, separated by a byte that is in no UTF-8: one byte for the status, one for the fields, then the content.
struct Server(Mutex<VecDeque<Vec<u8>>>);

impl HttpClient for Server {
    fn request(
        &self,
        request: http_types::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let next = self.0.lock().expect("nobody panics with it").pop_front();
        let answered = next.map_or(Err(Error::Str("it has ended")), |text| {
            respond(request.method(), &text)
        });
        Box::pin(std::future::ready(answered))
    }
}

fn respond(method: &http_types::Method, text: &[u8]) -> Result<BytesResponse, Error> {
    let (&[status, fields], content) = text.split_first_chunk().ok_or(Error::Str("too short"))?;
    let status = [200, 201, 204, 302, 400, 404, 429, 500][usize::from(status % 8)];
    if !answer_http_challenge::is_sound(method, status, content) {
        return Err(Error::Str("no ACME"));
    }
    let mut response = http_types::Response::builder().status(status);
    for (bit, name, value) in [
        (1, "replay-nonce", "abc"),
        (2, "location", "https://a/1"),
        (4, "link", "<https://a/2>;rel=\"alternate\""),
    ] {
        if fields & bit == 0 {
            response = response.header(name, value);
        }
    }
    let line = content
        .split(|byte| *byte == b'\n')
        .next_back()
        .unwrap_or_default();
    if let Some(wait) = answer_http_challenge::parse_retry_after(line, 1_700_000_000) {
        assert!(wait.as_secs() <= 86_400);
        response = response.header("retry-after", wait.as_secs());
    }
    let (parts, ()) = response.body(())?.into_parts();
    Ok(BytesResponse {
        parts,
        body: Box::new(Bytes::copy_from_slice(content)),
    })
}

async fn converse(server: Server) -> Result<(), Error> {
    let wanted = NewAccount {
        contact: &[],
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let builder = Account::builder_with_http(Box::new(server));
    let (account, _) = builder
        .create(&wanted, "https://a/".to_owned(), None)
        .await?;
    let authority = (&b"key"[..]).into();
    let old = CertificateIdentifier::new(authority, (&b"7"[..]).into());
    if let Ok((info, wait)) = account.renewal_info(&old).await {
        assert!(wait.as_secs() <= 86_400);
        let _ = info.suggested_window.start.unix_timestamp();
    }
    let names = [Identifier::Dns("a.test".to_owned())];
    let mut order = match account
        .new_order(&NewOrder::new(&names).replaces(old))
        .await
    {
        Ok(order) => order,
        Err(_) => account.new_order(&NewOrder::new(&names)).await?,
    };
    let mut authorizations = order.authorizations();
    while let Some(one) = authorizations.next().await {
        let mut one = one?;
        if let Some(mut challenge) = one.challenge(instant_acme::ChallengeType::Http01) {
            let _ = challenge.key_authorization().digest();
            challenge.set_ready().await?;
        }
    }
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut one)) = authorizations.next().await {
        one.refresh().await?;
    }
    order.refresh().await?;
    order.finalize_csr(b"request").await?;
    order.certificate().await?;
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let answers = data.split(|byte| *byte == 0xff).map(<[u8]>::to_vec);
    let conversation = pin!(converse(Server(Mutex::new(answers.collect()))));
    // Nothing in it waits: answers are there.
    let polled = conversation.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(_)));
});
