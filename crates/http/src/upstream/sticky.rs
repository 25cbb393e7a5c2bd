//! `sticky` around an exchange: the cookie that names the server, and sessions that are learned.

use bstr::{BStr, BString, ByteSlice};
use net::upstream::{CookieAttributes, Group, GroupState, Learn, Peer, StickyMethod};
use std::time::Duration;

use crate::request::Request;

/// What an exchange remembers of it.
pub(super) struct Stickiness {
    /// What was looked up: a server or a session; empty when nothing was.
    looked_up: BString,
    /// The cookie of the present try.
    cookie: Option<Vec<u8>>,
}

impl Stickiness {
    pub(super) fn new(looked_up: BString) -> Stickiness {
        Stickiness {
            looked_up,
            cookie: None,
        }
    }

    /// A peer was chosen: the response shall name it. The cookie of the try before goes.
    pub(super) fn picked(&mut self, request: &mut Request, group: &Group, peer: &Peer) {
        let Some(sticky) = &group.settings.sticky else {
            return;
        };
        let StickyMethod::Cookie(attributes) = &sticky.method else {
            return;
        };
        let cookie = cookie(request, attributes, peer.sid().as_bstr());
        if let Some(old) = self.cookie.replace(cookie.clone()) {
            request.out.fields.retain(|_, _, value| value != old);
        }
        request
            .out
            .fields
            .push_known(proto::Known::SetCookie, &cookie);
    }

    /// The response is good: its session belongs to the peer from now on.
    pub(super) fn learn(
        &self,
        request: &mut Request,
        group: &Group,
        state: &GroupState,
        peer: &Peer,
        at: Moment,
    ) {
        let Some(sticky) = &group.settings.sticky else {
            return;
        };
        let StickyMethod::Learn(learn) = &sticky.method else {
            return;
        };
        if learn.after_head == (at == Moment::Head) {
            state.learn(&created(request, learn), &self.looked_up, peer);
        }
    }
}

/// How far a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Head,
    End,
}

/// The session that the response began.
fn created(request: &mut Request, learn: &Learn) -> BString {
    for expression in &learn.create {
        let session = request.value(expression);
        if !session.is_empty() {
            return session;
        }
    }
    BString::default()
}

fn cookie(request: &mut Request, attributes: &CookieAttributes, sid: &BStr) -> Vec<u8> {
    let domain = attributes
        .domain
        .as_ref()
        .map(|value| request.value(value))
        .unwrap_or_default();
    let same_site = attributes
        .same_site
        .as_ref()
        .map(|value| request.value(value))
        .unwrap_or_default();
    let mut expires = Vec::new();
    if let Some(age) = attributes.expires.filter(|&age| age != Duration::MAX) {
        let at = Duration::from_millis(rt::wall_millis()).saturating_add(age);
        proto::date::write_cookie(
            i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            &mut expires,
        );
    }
    attributes.text(sid, &domain, &same_site, &expires)
}
