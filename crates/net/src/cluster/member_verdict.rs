//! What a member that is asked for a key does with the question. Pure; the rules are those of the cluster's design page:
//! nobody waits for a member that waits for another one, and a question is sent on once at most.

/// The question of a member, as this server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberQuestion {
    /// 1: the first question for this key. 2: another member has named this one.
    pub hop: u8,
    /// The asker wants nothing that has to be fetched first.
    pub only_stored: bool,
    /// The asker sees the same members as this server.
    pub is_same_view: bool,
    /// By this server's view the key is another member's, which is not the asker.
    pub is_of_another: bool,
}

/// What the answer would take here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedWork {
    /// Nothing: it is stored, or a fill that the origin feeds brings it.
    Serve,
    /// To wait for a fill that waits for another member.
    Join,
    /// A fetch.
    Fetch,
    /// An exchange for one client.
    Unshared,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberVerdict {
    /// It is answered.
    Answer,
    /// It is told to ask the owner.
    AskOwner,
    /// It gets nothing.
    Nothing,
    /// It is told that the response is for one client.
    Private,
}

/// Where the bytes of a fill come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillSource {
    /// The origin.
    Origin,
    /// Another member is asked for what it has stored; then the origin.
    StoredElsewhere,
    /// Another member fetches.
    OtherMember,
}

/// Whether a member may be made to wait for a fill. There is an order: a fill that another member fetches waits for the two
/// others, one that asks for what is stored waits only for one that the origin feeds. So no circle of waits closes,
/// whatever each member believes about who is there.
pub fn may_wait_for(source: FillSource, only_stored: bool) -> bool {
    match source {
        FillSource::Origin => true,
        FillSource::StoredElsewhere => !only_stored,
        FillSource::OtherMember => false,
    }
}

/// Decides.
pub fn judge_member(question: MemberQuestion, work: AskedWork) -> MemberVerdict {
    // What is stored is asked of one member only: see `may_wait_for`.
    let may_send_on = question.hop == 1 && question.is_of_another && !question.only_stored;
    let elsewhere = match may_send_on {
        true => MemberVerdict::AskOwner,
        false => MemberVerdict::Nothing,
    };
    match work {
        AskedWork::Serve => MemberVerdict::Answer,
        AskedWork::Join => elsewhere,
        AskedWork::Fetch if question.only_stored => MemberVerdict::Nothing,
        // By this server's view of the members another one fetches the key.
        AskedWork::Fetch if !question.is_same_view && may_send_on => MemberVerdict::AskOwner,
        // Asked although another member is the owner by the same view: that one could not be reached.
        AskedWork::Fetch => MemberVerdict::Answer,
        // The response would be for one client, and need not pass through here.
        AskedWork::Unshared => MemberVerdict::Private,
    }
}
