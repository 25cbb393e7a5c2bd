//! Rendezvous hashing: every member has a score for every key, and the key belongs to the member with the highest one.
//!
//! A member that leaves takes only its own keys away, each to the member that was next for it; a member that comes takes
//! an equal part of every other's. There is no table, so members that know the same names agree without talking. (Thaler
//! and Ravishankar, "A name-based mapping scheme for rendezvous", 1996.)

/// The score of a member for a key. Both are hashes already; this only has to mix them so that the order of members for one
/// key says nothing about that for another one.
pub(crate) fn score(member: u64, key: u64) -> u64 {
    // The finalizer of splitmix64: each bit of the input changes half of the output's.
    let mut mixed = member ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Sorts members for a key, the owner first. Equal scores are told apart by the members' hashes, so that all agree.
pub(crate) fn sort_for_key<M>(members: &mut [M], key: u64, hash: impl Fn(&M) -> u64) {
    members.sort_by_cached_key(|member| {
        let hash = hash(member);
        std::cmp::Reverse((score(hash, key), hash))
    });
}

/// The number of a set of members, whatever their order: two with the same number see the same members.
pub(crate) fn epoch_of(members: impl Iterator<Item = u64>) -> u64 {
    // A sum, because it is the same in every order; each term is mixed, so that no two small sets have the same one.
    members.fold(0, |sum, member| sum.wrapping_add(score(member, 1)))
}

/// Whether a member has so much in progress that a key is better asked of the next one: bounded load (Mirrokni and others,
/// "Consistent hashing with bounded loads", 2016). `all`: the requests in progress at all `members`.
pub(crate) fn is_overloaded(of_member: u32, all: u32, members: usize) -> bool {
    /// Below this nobody is overloaded: with a few requests the mean says nothing.
    const FREE: u64 = 256;
    /// How many times the mean a member may have.
    const FACTOR: u64 = 2;
    let members = u64::try_from(members).unwrap_or(u64::MAX).max(1);
    let bound = (u64::from(all) * FACTOR / members).max(FREE);
    u64::from(of_member) > bound
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> u64 {
        score(number, 77)
    }

    fn owner(members: &[u64], key: u64) -> u64 {
        let mut sorted = members.to_vec();
        sort_for_key(&mut sorted, key, |member| *member);
        sorted[0]
    }

    /// The keys that move when a member comes: those that it takes, and no others.
    #[test]
    fn one_member_more_moves_only_its_own_share() {
        for count in 2_u64..=12 {
            let before: Vec<u64> = (0..count).map(|number| score(number, 3)).collect();
            let mut after = before.clone();
            let new = score(count, 3);
            after.push(new);
            let keys = 100_000_u32;
            let mut moved = 0_u32;
            for number in 0..u64::from(keys) {
                let (old, now) = (owner(&before, key(number)), owner(&after, key(number)));
                if old != now {
                    assert_eq!(
                        now, new,
                        "a key moved between members that were there before"
                    );
                    moved += 1;
                }
            }
            let share = f64::from(moved) / f64::from(keys);
            let fair = 1.0 / (count + 1) as f64;
            assert!(share <= fair + 0.02, "{count}: {share} of {fair}");
            assert!(share >= fair - 0.02, "{count}: {share} of {fair}");
        }
    }

    #[test]
    fn the_order_of_a_list_does_not_matter() {
        let members: Vec<u64> = (0..5).map(|number| score(number, 9)).collect();
        let mut turned = members.clone();
        turned.reverse();
        assert_eq!(
            epoch_of(members.iter().copied()),
            epoch_of(turned.iter().copied())
        );
        for number in 0..1000 {
            assert_eq!(owner(&members, key(number)), owner(&turned, key(number)));
        }
        let fewer = epoch_of(members[1..].iter().copied());
        assert_ne!(epoch_of(members.iter().copied()), fewer);
    }

    #[test]
    fn a_member_is_overloaded_above_twice_the_mean() {
        assert!(!is_overloaded(200, 200, 3), "a few requests are no load");
        assert!(!is_overloaded(600, 900, 3));
        assert!(is_overloaded(601, 900, 3));
        assert!(!is_overloaded(0, 0, 0));
    }
}
