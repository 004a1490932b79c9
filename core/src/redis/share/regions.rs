//! Regions: named weights of one limit, and how they follow the demand.
//!
//! Each region counts its [`Share`] by itself, so that no request crosses an
//! ocean; the shares add up to the limit. A job that sees what every region
//! was asked for may move weight to where it is wanted: [`propose`] says how
//! much, and the regions take the new weights at once, as a whole list.
//!
//! # The proposal
//!
//! Every region first keeps the floor; below, weights and demands are what is
//! above it, `T` all weights and `D` all demands. A region that has weight `c`
//! and wants `d` is drawn towards
//!
//! - `T × d / D` when more is wanted than there is: all are short alike;
//! - `d + (T − D) × c / T` when less is: each has what it wants, and the spare
//!   stays in the proportion in which it lay.
//!
//! Either is `c + (T × d − D × c) / max(T, D)`. One step goes a part of that
//! way, and is rounded once, by largest remainder, so that the weights add up.
//! Who wants more never gets less: its own value rises and no other does, and
//! largest remainders keep that order. Nothing moves while every region has
//! what it wants.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::{MAX_PARTS, Share, ShareError};

/// The most regions of one limit.
pub const MAX_REGIONS: usize = 64;

/// Named weights; their shares add up to the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regions {
    names: Box<[String]>,
    weights: Box<[u64]>,
}

impl Regions {
    /// These regions, with their weights.
    ///
    /// # Errors
    /// None or more than [`MAX_REGIONS`], a name that is empty or twice there,
    /// or a sum of weights outside 1 to [`MAX_PARTS`].
    pub fn new(regions: &[(&str, u64)]) -> Result<Regions, ShareError> {
        count(regions.len())?;
        for (place, (name, _)) in regions.iter().enumerate() {
            if name.is_empty() || regions.iter().take(place).any(|(before, _)| before == name) {
                return Err(ShareError::Name(place));
            }
        }
        let weights: Vec<u64> = regions.iter().map(|(_, weight)| *weight).collect();
        Share::weighted(&weights, 0)?;
        let names = regions.iter().map(|(name, _)| String::from(*name)).collect();
        Ok(Regions { names, weights: weights.into() })
    }

    /// The share of a region; none of an unknown one.
    #[must_use]
    pub fn share(&self, name: &str) -> Option<Share> {
        let place = self.names.iter().position(|known| known == name)?;
        Share::weighted(&self.weights, place).ok()
    }

    /// Gives all regions new weights, in the order of [`names`](Self::names);
    /// on an error all keep their old ones. Every process must change over to
    /// the same list: shares of two lists do not add up.
    ///
    /// # Errors
    /// Not one weight a region, or a sum outside 1 to [`MAX_PARTS`].
    pub fn set_weights(&mut self, weights: &[u64]) -> Result<(), ShareError> {
        if weights.len() != self.weights.len() {
            return Err(ShareError::Regions(weights.len()));
        }
        Share::weighted(weights, 0)?;
        self.weights.copy_from_slice(weights);
        Ok(())
    }

    /// The names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The weights, in that order.
    #[must_use]
    pub fn weights(&self) -> &[u64] {
        &self.weights
    }

    /// All weights together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(*weight)) // checked: at most MAX_PARTS
    }
}

/// New weights from measured demand, for each region in `out`.
///
/// `demand` is in the unit of the weights: where `total` stands for 100,000
/// requests a minute, a region that is asked 50,000 wants half of `total`. No
/// new weight is below `floor`; the step goes `max_step_permille` thousandths
/// of the way, 1000 for all of it. Repeated steps end within
/// `1000 / max_step_permille` units of the aim. A `current` that does not add
/// up to `total`, or is below the floor, is first brought there in proportion.
/// On an error `out` is left as it was.
///
/// # Errors
/// Lists of different lengths, none or more than [`MAX_REGIONS`] regions, a
/// total outside 1 to [`MAX_PARTS`], a floor that there is not enough for, or
/// a step outside 1 to 1000.
pub fn propose(
    current: &[u64],
    demand: &[u64],
    total: u64,
    floor: u64,
    max_step_permille: u64,
    out: &mut [u64],
) -> Result<(), ShareError> {
    let regions = count(current.len())?;
    for other in [demand.len(), out.len()] {
        if other != current.len() {
            return Err(ShareError::Regions(other));
        }
    }
    if !(1..=MAX_PARTS).contains(&total) {
        return Err(ShareError::Parts(total));
    }
    let free = floor.checked_mul(regions).and_then(|kept| total.checked_sub(kept));
    let free = free.ok_or(ShareError::Floor { count: current.len(), floor, total })?;
    if !(1..=1000).contains(&max_step_permille) {
        return Err(ShareError::Step(max_step_permille));
    }

    // From here on all is what lies above the floor. Weights are below 2^30,
    // demands below 2^64 and at most 64: products stay below 2^112.
    let above = |value: u64| i128::from(value.saturating_sub(floor));
    let mut quotas = [Quota::default(); MAX_REGIONS];
    let sum: i128 = current.iter().map(|weight| above(*weight)).sum();
    for (quota, weight) in quotas.iter_mut().zip(current) {
        *quota = match sum {
            0 => Quota::new(free.into(), regions.into()),
            sum => Quota::new(i128::from(free) * above(*weight), sum),
        };
    }
    apportion(free, &mut quotas, out);
    let is_satisfied = out.iter().zip(demand).all(|(weight, want)| above(*want) <= i128::from(*weight));
    if !is_satisfied {
        let all = i128::from(free);
        let wanted: i128 = demand.iter().map(|want| above(*want)).sum();
        let parts = 1000 * all.max(wanted); // some demand is above its weight: not 0
        for ((quota, weight), want) in quotas.iter_mut().zip(out.iter()).zip(demand) {
            let weight = i128::from(*weight);
            let way = all * above(*want) - wanted * weight;
            *quota = Quota::new(weight * parts + way * i128::from(max_step_permille), parts);
        }
        apportion(free, &mut quotas, out);
    }
    out.iter_mut().for_each(|weight| *weight += floor); // at most total
    Ok(())
}

fn count(regions: usize) -> Result<u64, ShareError> {
    if (1..=MAX_REGIONS).contains(&regions) { Ok(regions as u64) } else { Err(ShareError::Regions(regions)) }
}

/// What a region is due: a whole number, and a rest in parts that all regions
/// count alike.
#[derive(Clone, Copy, Default)]
struct Quota {
    whole: u64,
    rest: i128,
}

impl Quota {
    /// A fraction that is not negative, and at most all weights together.
    fn new(numerator: i128, denominator: i128) -> Quota {
        Quota {
            whole: numerator.div_euclid(denominator) as u64, // at most MAX_PARTS
            rest: numerator.rem_euclid(denominator),
        }
    }
}

/// Whole numbers that add up to `total`, as the quotas do: those with the
/// largest rests get one more, of equal ones the first.
fn apportion(total: u64, quotas: &mut [Quota], out: &mut [u64]) {
    let mut left = total;
    for (weight, quota) in out.iter_mut().zip(quotas.iter()) {
        *weight = quota.whole;
        left = left.saturating_sub(quota.whole); // wholes never add up to more than the quotas
    }
    for _ in 0..left.min(MAX_REGIONS as u64) {
        let mut best: Option<(&mut u64, &mut Quota)> = None;
        for (weight, quota) in out.iter_mut().zip(quotas.iter_mut()) {
            if best.as_ref().is_none_or(|(_, best)| quota.rest > best.rest) {
                best = Some((weight, quota));
            }
        }
        if let Some((weight, quota)) = best {
            *weight += 1; // at most total
            quota.rest = -1;
        }
    }
}
