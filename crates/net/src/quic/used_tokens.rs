//! Tokens by which a client that returns proves its address at once (NEW_TOKEN, RFC 9000, section 8.1.3): a returning client
//! needs no Retry, however many strangers are at the door.
//!
//! Each is good once (section 8.1.4): an attacker who has seen one could let the server send to another client's address with
//! it. What has been used is remembered by its number.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::sync::Mutex;
use quinn_proto::{TokenLog, TokenReuseError, ValidationTokenConfig};

/// How long a token is good.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// How many numbers one generation has: 16 bytes each.
const GENERATION: usize = 4096;

/// The tokens used last, between one and two generations of them. One that was used before those could be used again, which is
/// what the RFC calls limited.
#[derive(Default)]
pub(super) struct UsedTokens(Mutex<[HashSet<u128>; 2]>);

impl UsedTokens {
    /// The library's settings.
    pub(super) fn config(self: &Arc<Self>) -> ValidationTokenConfig {
        let mut config = ValidationTokenConfig::default();
        config
            .lifetime(LIFETIME)
            .log(Arc::clone(self) as Arc<dyn TokenLog>)
            .sent(1);
        config
    }
}

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        _: SystemTime,
        _: Duration,
    ) -> Result<(), TokenReuseError> {
        let [present, former] = &mut *self.0.lock();
        if former.contains(&nonce) || !present.insert(nonce) {
            return Err(TokenReuseError);
        }
        if present.len() >= GENERATION {
            *former = std::mem::take(present);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_what_is_remembered_is_bounded() {
        let used = UsedTokens::default();
        let use_it = |nonce| {
            let checked = used.check_and_insert(nonce, SystemTime::UNIX_EPOCH, LIFETIME);
            checked.is_ok()
        };
        for nonce in 0..3 * GENERATION as u128 {
            assert!(use_it(nonce));
            assert!(!use_it(nonce));
        }
        let [present, former] = &*used.0.lock();
        assert!(present.len() + former.len() <= 2 * GENERATION);
    }
}
