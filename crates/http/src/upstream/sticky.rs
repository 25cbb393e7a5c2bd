//! `sticky` during an exchange: the cookie that names the server, and the learning of sessions.

use bstr::{BStr, BString, ByteSlice};
use net::upstream::{
    CookieAttributes, GroupState, StickyLearn, StickyMethod, UpstreamGroup, UpstreamPeer,
};
use std::time::Duration;

use crate::request::Request;

/// The state of `sticky` in an exchange.
pub(super) struct StickyState {
    /// The server or the session that the request named; empty if it named none.
    looked_up: BString,
    /// The cookie of the current try.
    cookie: Option<Vec<u8>>,
}

impl StickyState {
    pub(super) fn new(looked_up: BString) -> StickyState {
        StickyState {
            looked_up,
            cookie: None,
        }
    }

    /// Adds the cookie that names the chosen server to the response. It replaces the cookie of the previous try: the
    /// client must return to the server that answered.
    pub(super) fn note_peer(
        &mut self,
        request: &mut Request,
        group: &UpstreamGroup,
        peer: &UpstreamPeer,
    ) {
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
            .push_known(proto::KnownField::SetCookie, &cookie);
    }

    /// Assigns the session of a successful response to the server.
    pub(super) fn learn_session(
        &self,
        request: &mut Request,
        group: &UpstreamGroup,
        state: &GroupState,
        peer: &UpstreamPeer,
        at: LearnMoment,
    ) {
        let Some(sticky) = &group.settings.sticky else {
            return;
        };
        let StickyMethod::Learn(learn) = &sticky.method else {
            return;
        };
        // With the parameter `header`, the session is learned as soon as the head has arrived; otherwise only from a
        // response that is complete.
        if learn.after_head == (at == LearnMoment::Head) {
            state.learn_session(&created(request, learn), &self.looked_up, peer);
        }
    }
}

/// The point of a response at which a session can be learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LearnMoment {
    Head,
    End,
}

/// The session that the response created: the first value of `create` that is not empty.
fn created(request: &mut Request, learn: &StickyLearn) -> BString {
    for expression in &learn.create {
        let session = request.value(expression);
        if !session.is_empty() {
            return session;
        }
    }
    BString::default()
}

/// The text of the cookie, with its variables evaluated.
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
    // `expires=max` is written by the attributes themselves; only a duration depends on the present time.
    if let Some(age) = attributes.expires.filter(|&age| age != Duration::MAX) {
        let at = Duration::from_millis(rt::wall_millis()).saturating_add(age);
        proto::date::write_cookie(
            i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            &mut expires,
        );
    }
    attributes.text(sid, &domain, &same_site, &expires)
}
