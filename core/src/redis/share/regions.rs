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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    /// The new weights.
    fn proposed(current: &[u64], demand: &[u64], total: u64, floor: u64, step: u64) -> Vec<u64> {
        let mut out = vec![0; current.len()];
        propose(current, demand, total, floor, step, &mut out).unwrap();
        out
    }

    #[test]
    fn spare_goes_where_it_is_wanted_and_shortage_is_shared() {
        assert_eq!(proposed(&[50, 50], &[20, 70], 100, 0, 1000), [25, 75]);
        assert_eq!(proposed(&[50, 50], &[20, 70], 100, 0, 500), [38, 62]);
        assert_eq!(proposed(&[50, 50], &[300, 100], 100, 0, 1000), [75, 25]);
        assert_eq!(proposed(&[50, 50], &[300, 0], 100, 10, 1000), [90, 10]);
        assert_eq!(proposed(&[50, 50], &[0, 0], 100, 0, 1000), [50, 50]);
        assert_eq!(proposed(&[0, 0, 0], &[0, 0, 0], 100, 0, 1000), [34, 33, 33]);
        assert_eq!(proposed(&[u64::MAX; 2], &[u64::MAX; 2], MAX_PARTS, 0, 1000), [MAX_PARTS / 2; 2]);
        assert_eq!(proposed(&[7, 3], &[9, 9], 10, 5, 1000), [5, 5]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_nothing_is_written() {
        let mut out = [7; 2];
        let mut refused = |demand: &[u64], total, floor, step| {
            propose(&[1, 1], demand, total, floor, step, &mut out).unwrap_err()
        };
        assert_eq!(refused(&[1], 2, 0, 1000), ShareError::Regions(1));
        assert_eq!(refused(&[1, 1], 0, 0, 1000), ShareError::Parts(0));
        assert_eq!(refused(&[1, 1], MAX_PARTS + 1, 0, 1000), ShareError::Parts(MAX_PARTS + 1));
        assert_eq!(refused(&[1, 1], 5, 3, 1000), ShareError::Floor { count: 2, floor: 3, total: 5 });
        assert!(matches!(refused(&[1, 1], 5, u64::MAX, 1000), ShareError::Floor { .. }));
        assert_eq!(refused(&[1, 1], 5, 0, 0), ShareError::Step(0));
        assert_eq!(refused(&[1, 1], 5, 0, 1001), ShareError::Step(1001));
        assert_eq!(out, [7; 2]);
        assert_eq!(propose(&[], &[], 1, 0, 1, &mut []), Err(ShareError::Regions(0)));
        assert_eq!(propose(&[1; 65], &[1; 65], 65, 0, 1, &mut [0; 65]), Err(ShareError::Regions(65)));
    }

    #[test]
    fn regions_have_names_of_their_own_and_change_all_at_once() {
        assert_eq!(Regions::new(&[]), Err(ShareError::Regions(0)));
        assert_eq!(Regions::new(&[("eu", 1), ("eu", 1)]), Err(ShareError::Name(1)));
        assert_eq!(Regions::new(&[("eu", 1), ("", 1)]), Err(ShareError::Name(1)));
        assert_eq!(Regions::new(&[("eu", 0)]), Err(ShareError::Parts(0)));
        let mut regions = Regions::new(&[("eu", 1), ("us", 3)]).unwrap();
        assert_eq!((regions.share("us"), regions.share("ap")), (Share::new(1, 4, 4).ok(), None));
        assert_eq!(regions.set_weights(&[1]), Err(ShareError::Regions(1)));
        assert_eq!(regions.set_weights(&[0, 0]), Err(ShareError::Parts(0)));
        assert_eq!((regions.weights(), regions.total()), (&[1, 3][..], 4));
        regions.set_weights(&[2, 5]).unwrap();
        assert_eq!(regions.share("us"), Share::new(2, 7, 7).ok());
        assert!(regions.names().eq(["eu", "us"]));
    }

    #[derive(Clone, Debug)]
    struct Case {
        current: Vec<u64>,
        demand: Vec<u64>,
        total: u64,
        floor: u64,
        step: u64,
    }

    impl Case {
        fn propose(&self) -> Vec<u64> {
            proposed(&self.current, &self.demand, self.total, self.floor, self.step)
        }
    }

    /// Weights that add up and keep the floor, and demands about as large;
    /// few at times, so that they meet.
    fn case() -> impl Strategy<Value = Case> {
        let largest = prop::sample::select(vec![3u64, 40, 1_000_000]);
        (1usize..12, largest, prop_oneof![1u64..5, 1u64..1_000_000])
            .prop_flat_map(|(regions, largest, wanted)| {
                let weights = prop::collection::vec(0..=largest, regions);
                let demand = prop::collection::vec(
                    prop_oneof![6 => 0..=largest.saturating_mul(wanted.min(3)), 1 => any::<u64>()],
                    regions,
                );
                (weights, demand, prop_oneof![Just(0), 0u64..50], prop_oneof![Just(1000), 1u64..=1000])
            })
            .prop_map(|(mut current, demand, floor, step)| {
                current[0] += 1;
                current.iter_mut().for_each(|weight| *weight += floor);
                let total = current.iter().sum();
                Case { current, demand, total, floor, step }
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn new_weights_add_up_and_keep_the_floor_whatever_the_old_ones(
            case in case(), total in 600u64..=MAX_PARTS, current in prop::collection::vec(any::<u64>(), 12),
        ) {
            let new = case.propose();
            prop_assert_eq!(new.iter().sum::<u64>(), case.total);
            prop_assert!(new.iter().all(|weight| *weight >= case.floor));
            // And so they do when the old ones did not.
            let current = current[..case.demand.len()].to_vec();
            let new = Case { current, total, ..case.clone() }.propose();
            prop_assert_eq!(new.iter().sum::<u64>(), total);
            prop_assert!(new.iter().all(|weight| *weight >= case.floor));
        }

        #[test]
        fn the_shares_of_new_weights_add_up(case in case(), units in any::<u32>()) {
            let weights = case.propose();
            let names: Vec<_> = (0..weights.len()).map(|place| std::format!("region-{place}")).collect();
            let named: Vec<_> = names.iter().zip(&weights).map(|(name, weight)| (name.as_str(), *weight)).collect();
            let regions = Regions::new(&named).unwrap();
            let parts = regions.names().map(|name| regions.share(name).unwrap().of_units(units.into()));
            prop_assert_eq!(parts.sum::<u64>(), u64::from(units));
        }

        #[test]
        fn who_wants_more_never_gets_less(case in case(), region in any::<prop::sample::Index>(), more in prop_oneof![1u64..5, any::<u64>()]) {
            let region = region.index(case.demand.len());
            let before = case.propose()[region];
            let mut case = case;
            case.demand[region] = case.demand[region].saturating_add(more);
            prop_assert!(case.propose()[region] >= before);
        }

        #[test]
        fn nothing_moves_while_all_have_what_they_want(case in case()) {
            let demand = case.demand.iter().zip(&case.current).map(|(want, weight)| *want.min(weight)).collect();
            prop_assert_eq!(&Case { demand, ..case.clone() }.propose(), &case.current);
        }

        #[test]
        fn a_whole_step_of_less_than_there_is_gives_everyone_what_they_want(
            case in case(), by in 0usize..12, busy in 0u64..=1000,
        ) {
            // The demand is other regions' weights, or a part of them.
            let mut demand = case.current.clone();
            demand.rotate_left(by % case.current.len());
            demand.iter_mut().for_each(|want| *want = *want * busy / 1000);
            let new = Case { step: 1000, demand: demand.clone(), ..case }.propose();
            prop_assert!(new.iter().zip(&demand).all(|(weight, want)| weight >= want));
        }

        #[test]
        fn a_step_goes_no_further_than_it_may(case in case()) {
            let aim = Case { step: 1000, ..case.clone() }.propose();
            for ((new, old), aim) in case.propose().iter().zip(&case.current).zip(&aim) {
                // One unit for the rounding of the aim, one for that of the step.
                let most = ((aim.abs_diff(*old) + 1) * case.step).div_ceil(1000);
                prop_assert!(new.abs_diff(*old) <= most, "{old} {new} {aim}");
            }
        }

        #[test]
        fn repeated_steps_come_to_the_demand_and_stay(case in case(), step in prop_oneof![Just(1000), 50u64..=1000]) {
            let mut case = Case { step, ..case };
            let near = 1000 / step + 1;
            let mut rounds = 0;
            loop {
                let next = case.propose();
                if next == case.current {
                    break;
                }
                case.current = next;
                rounds += 1;
                prop_assert!(rounds < 3_000, "{:?}", case);
            }
            let free = u128::from(case.total) - u128::from(case.floor) * case.current.len() as u128;
            let above = |value: &u64| u128::from(value.saturating_sub(case.floor));
            let wanted: u128 = case.demand.iter().map(above).sum();
            for (weight, want) in case.current.iter().zip(&case.demand) {
                let aim = if wanted > free { free * above(want) / wanted } else { above(want) };
                let (has, near) = (above(weight), u128::from(near));
                prop_assert!(has + near >= aim, "{case:?}");
                prop_assert!(wanted <= free || has <= aim + near, "{case:?}");
            }
        }
    }
}
