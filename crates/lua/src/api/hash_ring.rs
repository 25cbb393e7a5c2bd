//! The ring of `resty.chash`: which node of a list a key belongs to.
//!
//! The original keeps it in C. The points are the same, so that a key, such as a session's cookie, leads to the same
//! node as behind nginx. Where two nodes have the same point, their names decide, in every VM alike; in the original it
//! is the order of a Lua table.

use std::rc::Rc;

use super::arguments::{anything, number, table};
use super::{CallResult, NativeTable};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::{LuaStack, NativeReturn, fail};

pub(super) const CORE: NativeTable = &[("hash_ring", new)];

/// The points of a node with weight 1, as in nginx's `hash … consistent`.
const POINTS: usize = 160;

/// The most points of a ring: 128 MB. A weight is any number that a script gives.
const MOST_POINTS: usize = 16_000_000;

static RING: ObjectClass = ObjectClass {
    name: "weir.hash_ring",
    shape: ObjectShape::Userdata,
    methods: &[("find", find), ("at", at), ("length", length)],
};

/// Points in order, each with the number of its node.
#[derive(Debug, PartialEq, Eq)]
struct HashRing(Box<[(u32, u32)]>);

impl HashRing {
    /// The ring of these nodes, names with weights; `None` if it would have too many points.
    fn new(nodes: &[(Vec<u8>, usize)]) -> Option<HashRing> {
        let total = nodes
            .iter()
            .try_fold(0_usize, |sum, (_, weight)| sum.checked_add(*weight))
            .and_then(|weight| weight.checked_mul(POINTS))
            .filter(|total| *total <= MOST_POINTS)?;
        let mut points = Vec::with_capacity(total);
        for (node, (name, weight)) in nodes.iter().enumerate() {
            let node = u32::try_from(node).ok()?;
            let mut text = name.clone();
            let mut hash = 0_u32;
            for _ in 0..weight * POINTS {
                // Each point is the hash of the name and of the point before it.
                text.truncate(name.len());
                text.extend_from_slice(&hash.to_le_bytes());
                hash = base::hash::crc32(&text);
                points.push((hash, node));
            }
        }
        points.sort_unstable_by_key(|&(hash, node)| (hash, &nodes[node as usize].0));
        Some(HashRing(points.into()))
    }

    /// The place of the first point that is not before this hash.
    fn place(&self, hash: u32) -> usize {
        let place = self.0.partition_point(|(point, _)| *point < hash);
        if place == self.0.len() { 0 } else { place }
    }
}

/// `hash_ring(names, weights)`.
fn new(stack: &LuaStack) -> CallResult {
    table(stack, 1)?;
    table(stack, 2)?;
    let mut nodes = Vec::new();
    for n in 1..=stack.length(1) {
        stack.element(1, n);
        let name = anything(stack, -1);
        stack.element(2, n);
        let weight = stack.number(-1).unwrap_or_default();
        stack.pop(2);
        // A weight that is no number is none; `as` makes a large one too large below.
        nodes.push((name, weight.max(0.0) as usize));
    }
    match HashRing::new(&nodes) {
        Some(ring) => object::push(stack, &RING, Rc::new(ring)),
        None => return fail("no memory"),
    }
    super::ONE
}

/// `ring:find(key)`: the number of the node, from 1, and the place of its point, from 0.
fn find(stack: &LuaStack) -> CallResult {
    let ring = object::get::<HashRing>(stack, 1, "hash ring")?;
    let place = ring.place(base::hash::crc32(&anything(stack, 2)));
    push_place(stack, &ring, place)
}

/// `ring:at(place)`: the same for a place, which is counted around the ring.
fn at(stack: &LuaStack) -> CallResult {
    let ring = object::get::<HashRing>(stack, 1, "hash ring")?;
    let place = number(stack, 2)?.max(0.0) as usize;
    let place = place.checked_rem(ring.0.len()).unwrap_or_default();
    push_place(stack, &ring, place)
}

fn push_place(stack: &LuaStack, ring: &HashRing, place: usize) -> CallResult {
    match ring.0.get(place) {
        Some((_, node)) => stack.push_number(f64::from(*node) + 1.0),
        // A ring without nodes.
        None => stack.push_nil(),
    }
    stack.push_number(place as f64);
    Ok(NativeReturn::Values(2))
}

/// `ring:length()`: how many points there are.
fn length(stack: &LuaStack) -> CallResult {
    let ring = object::get::<HashRing>(stack, 1, "hash ring")?;
    stack.push_number(ring.0.len() as f64);
    super::ONE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(nodes: &[(&str, usize)]) -> HashRing {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, weight)| (name.as_bytes().to_vec(), *weight))
            .collect();
        HashRing::new(&nodes).expect("it is small")
    }

    #[test]
    fn a_key_belongs_to_the_next_point_around_the_ring() {
        let ring = ring(&[("a", 1), ("b", 2)]);
        assert_eq!(ring.0.len(), 3 * POINTS);
        assert!(ring.0.is_sorted());
        for (place, (hash, _)) in ring.0.iter().enumerate() {
            assert_eq!(ring.place(*hash), place);
            let next = (place + 1) % ring.0.len();
            assert_eq!(ring.place(hash.wrapping_add(1)), next);
        }
        assert_eq!((ring.place(0), ring.place(u32::MAX)), (0, 0));
    }

    #[test]
    fn what_is_absurd_is_refused() {
        let of = |weight| HashRing::new(&[(b"a".to_vec(), weight), (b"b".to_vec(), 1)]);
        assert_eq!(of(usize::MAX), None);
        assert_eq!(of(usize::MAX / POINTS), None);
        assert_eq!(of(MOST_POINTS / POINTS), None);
        assert_eq!(HashRing::new(&[]).map(|ring| ring.place(7)), Some(0));
    }

    #[test]
    fn a_node_more_moves_only_the_keys_that_it_gets() {
        let (small, large) = (
            ring(&[("a", 1), ("b", 1)]),
            ring(&[("a", 1), ("b", 1), ("c", 1)]),
        );
        let node = |ring: &HashRing, n: u32| ring.0[ring.place(n.wrapping_mul(0x9e37_79b9))].1;
        let moved = (0..30_000).filter(|n| node(&large, *n) == 2).count();
        assert!((7_000..13_000).contains(&moved), "{moved}");
        assert!((0..30_000).all(|n| node(&large, n) == 2 || node(&large, n) == node(&small, n)));
    }
}
