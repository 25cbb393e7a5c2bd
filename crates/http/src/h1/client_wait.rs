//! How a response waits: for its client, with what is held for one that is slow, and for the next allowance of `limit_rate`.

use std::io;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use host::tight_memory::is_tight;
use rt::net::SocketOption;

use super::sender::{GATHER, Http1Sender, SendJob};
use crate::ledger::LedgerPhase;
use crate::memory_peak;
use crate::request::Request;
use crate::response_body::ResponseBody;
use crate::response_send::ResponseSendError;

/// How long a client may take nothing before it counts as slow.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many bytes the kernel accepts for a slow client beyond those on their way.
const UNSENT_OF_SLOW: i32 = 32 * 1024;

/// [`GATHER`] for a slow client, which takes little at a time.
const GATHER_FOR_SLOW: usize = 16 * 1024;

impl Http1Sender {
    /// Waits with an empty output, which others may use meanwhile. `false` if the client is slow and the caller has to stop
    /// ([`SendJob::stops`]).
    pub(super) async fn writable(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
    ) -> Result<bool, ResponseSendError> {
        self.release();
        job.waited = self.patience(job);
        if self.is_writable_within(request, job.waited).await? {
            return Ok(true);
        }
        self.note_slow_client();
        if job.stops {
            return Ok(false);
        }
        self.wait_longer(request, job).await.map(|()| true)
    }

    /// Waits for a client that has turned out to be slow, for what is left of `send_timeout`.
    pub(super) async fn wait_longer(
        &self,
        request: &mut Request,
        job: &SendJob,
    ) -> Result<(), ResponseSendError> {
        let rest = job.timeout.saturating_sub(job.waited);
        self.wait_writable(request, rest).await
    }

    /// Up to which size output is gathered.
    pub(super) fn most_output(&self) -> usize {
        match self.is_slow || is_tight() {
            true => GATHER_FOR_SLOW,
            false => GATHER,
        }
    }

    /// How long the client may take nothing before what is held for it is dropped: not at all, if it was slow before, or if
    /// memory is tight.
    pub(super) fn patience(&self, job: &SendJob) -> Duration {
        match self.is_slow || is_tight() {
            true => Duration::ZERO,
            false => PATIENCE.min(job.timeout),
        }
    }

    /// Notes that the client is slow. From now on the kernel accepts little more than can be on its way: its memory is
    /// bounded, too. Not for every client: a fast one would cost more wake-ups.
    pub(super) fn note_slow_client(&mut self) {
        memory_peak::note_dropped(GATHER_FOR_SLOW);
        if !std::mem::replace(&mut self.is_slow, true) {
            // A socket that refuses the option takes more memory, nothing else.
            let _ = self
                .bytes
                .transport
                .socket()
                .set_option(SocketOption::NotSentLow, UNSENT_OF_SLOW);
        }
    }

    pub(super) async fn wait_writable(
        &self,
        request: &mut Request,
        timeout: Duration,
    ) -> Result<(), ResponseSendError> {
        match self.is_writable_within(request, timeout).await? {
            true => Ok(()),
            false => Err(ResponseSendError::TimedOut),
        }
    }

    /// Waits until the socket takes bytes; `false` if it does not in this time.
    pub(super) async fn is_writable_within(
        &self,
        request: &mut Request,
        timeout: Duration,
    ) -> Result<bool, ResponseSendError> {
        self.timer.set(timeout);
        let former = request.ledger.enter(LedgerPhase::Client);
        let result = std::future::poll_fn(|context| {
            if let Poll::Ready(result) = self.bytes.transport.poll_writable(context) {
                return Poll::Ready(result.map(|()| true).map_err(ResponseSendError::Failed));
            }
            // The client takes nothing now; a producer that works ahead must still not stall (an upstream whose
            // response is buffered should be read to its end and released).
            ResponseBody::poll_ahead_of(request, context);
            self.timer.poll_expired(context).map(|()| Ok(false))
        })
        .await;
        request.ledger.enter(former);
        result
    }

    pub(super) async fn wait_flushed(
        &self,
        request: &mut Request,
        timeout: Duration,
    ) -> Result<(), ResponseSendError> {
        self.timer.set(timeout);
        let former = request.ledger.enter(LedgerPhase::Client);
        let result = std::future::poll_fn(|context| {
            if let Poll::Ready(result) = self.bytes.transport.poll_flush(context) {
                return Poll::Ready(result.map_err(ResponseSendError::Failed));
            }
            // As above: a producer that works ahead must not stall.
            ResponseBody::poll_ahead_of(request, context);
            self.timer
                .poll_expired(context)
                .map(|()| Err(ResponseSendError::TimedOut))
        })
        .await;
        request.ledger.enter(former);
        result
    }

    /// `limit_rate` counts the head, too, as in nginx: sends it within the allowance. The last part stays in the
    /// output, to leave with the first content.
    pub(super) async fn paced_head(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
    ) -> Result<(), ResponseSendError> {
        let head = std::mem::take(&mut self.out);
        let mut rest = &head[..];
        loop {
            let n = self.pace(request, job).await?.min(rest.len() as u64) as usize;
            self.out.extend_from_slice(&rest[..n]);
            job.paid(n as u64);
            rest = &rest[n..];
            if rest.is_empty() {
                return Ok(());
            }
            self.flush(request, job).await?;
        }
    }

    pub(super) async fn paced_bytes(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        mut bytes: Bytes,
    ) -> Result<(), ResponseSendError> {
        while !bytes.is_empty() {
            // A part per allowance, and a chunk per part: a chunk's size has to be known when it begins.
            let n = self.pace(request, job).await?.min(bytes.len() as u64) as usize;
            let part = bytes.split_to(n);
            self.begin_chunk(job, part.len() as u64);
            self.out.extend_from_slice(&part);
            self.end_chunk(job);
            self.flush(request, job).await?;
            job.paid(part.len() as u64);
        }
        Ok(())
    }

    /// How many bytes may be sent now; waits until it is at least one. A client that leaves meanwhile ends the wait: at
    /// a low rate its connection would otherwise be occupied for long.
    pub(super) async fn pace(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
    ) -> Result<u64, ResponseSendError> {
        loop {
            let Some(pace) = &job.pace else {
                return Ok(u64::MAX);
            };
            let wait = match pace.allowance(rt::now()) {
                Ok(bytes) => return Ok(bytes),
                Err(wait) => wait,
            };
            let former = request.ledger.enter(LedgerPhase::Limit);
            let left = rt::timeout(wait, self.bytes.transport.closed()).await;
            request.ledger.enter(former);
            if left.is_ok() {
                let left = "client prematurely closed connection";
                return Err(ResponseSendError::Failed(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    left,
                )));
            }
        }
    }
}
