//! Handlers that run in phases, as http and stream both have them: what a handler gives back, and the handlers of a
//! block by phase. Which phases there are, and what ends one, is each engine's own.

use std::marker::PhantomData;
use std::ops::Index;
use std::pin::Pin;

/// What a handler gives back: how it ended, or a future of that. An end at once costs no allocation.
pub enum PhaseStep<'a, O> {
    /// The handler is done.
    Now(O),
    /// The handler will be done when this future is.
    Later(Pin<Box<dyn Future<Output = O> + 'a>>),
}

impl<O> From<O> for PhaseStep<'_, O> {
    fn from(outcome: O) -> Self {
        PhaseStep::Now(outcome)
    }
}

impl<'a, O> PhaseStep<'a, O> {
    /// A step that ends with `future`.
    pub fn later(future: impl Future<Output = O> + 'a) -> Self {
        PhaseStep::Later(Box::pin(future))
    }

    /// Waits for the outcome of the step.
    pub async fn outcome(self) -> O {
        match self {
            PhaseStep::Now(outcome) => outcome,
            PhaseStep::Later(future) => future.await,
        }
    }
}

/// The handlers of a block by phase. `P` is the engine's list of phases, `N` their number.
pub struct PhaseHandlers<P, H, const N: usize> {
    lists: [Box<[H]>; N],
    phase: PhantomData<P>,
}

impl<P: Into<usize>, H, const N: usize> PhaseHandlers<P, H, N> {
    /// Collects handlers, each with its phase, in the order of the modules.
    pub fn collect(handlers: impl Iterator<Item = (P, H)>) -> Self {
        let mut lists = [const { Vec::new() }; N];
        for (phase, handler) in handlers {
            lists[phase.into()].push(handler);
        }
        PhaseHandlers {
            lists: lists.map(Vec::into_boxed_slice),
            phase: PhantomData,
        }
    }
}

impl<P: Into<usize>, H, const N: usize> Default for PhaseHandlers<P, H, N> {
    fn default() -> Self {
        PhaseHandlers::collect(std::iter::empty())
    }
}

impl<P: Into<usize>, H, const N: usize> Index<P> for PhaseHandlers<P, H, N> {
    type Output = [H];

    fn index(&self, phase: P) -> &[H] {
        &self.lists[phase.into()]
    }
}
