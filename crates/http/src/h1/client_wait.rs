//! How a response waits for its client, and what is held for one that is slow.

use std::task::Poll;
use std::time::Duration;

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
    /// Waits with an empty output, which others may use meanwhile.
    pub(super) async fn writable(
        &mut self,
        request: &mut Request,
        job: &SendJob,
    ) -> Result<(), ResponseSendError> {
        self.release();
        let patience = self.patience(job);
        if self.is_writable_within(request, patience).await? {
            return Ok(());
        }
        self.note_slow_client();
        self.wait_writable(request, job.timeout.saturating_sub(patience))
            .await
    }

    /// Up to which size output is gathered.
    pub(super) fn most_output(&self) -> usize {
        match self.is_slow {
            true => GATHER_FOR_SLOW,
            false => GATHER,
        }
    }

    /// How long the client may take nothing before what is held for it is dropped: not at all, if it was slow before.
    pub(super) fn patience(&self, job: &SendJob) -> Duration {
        match self.is_slow {
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
}
