//! Generators: what makes cases. Each area has a file of its own and one line in [`AREAS`].

mod locations;

use crate::case::Case;
use crate::case::tree::Node;
use crate::random::Dice;

/// Makes cases of one area.
pub trait Generator: Sync {
    /// The area's name, as `--area` takes it.
    fn area(&self) -> &'static str;

    /// Directives of `http` that all cases of one start inherit.
    fn ambient(&self, _dice: &mut Dice) -> Vec<Node> {
        Vec::new()
    }

    /// A case. It may use nothing but the dice, so that the seed alone decides.
    fn case(&self, dice: &mut Dice) -> Case;
}

/// All areas.
pub const AREAS: &[&dyn Generator] = &[&locations::Locations];

/// Makes the cases of the start of this number.
pub fn batch(generator: &dyn Generator, seed: u64, number: u64, size: usize) -> Vec<Case> {
    let dice = Dice::new(seed).part(number);
    let ambient = generator.ambient(&mut dice.part(u64::MAX));
    let cases = (0..size as u64).map(|i| {
        let mut case = generator.case(&mut dice.part(i));
        case.name = format!("{}-{seed}-{number}-{i}", generator.area());
        case.ambient.clone_from(&ambient);
        case
    });
    cases.collect()
}
