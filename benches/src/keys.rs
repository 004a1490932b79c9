//! Keys, and the order in which requests bring them.

/// Bytes of every key.
pub(crate) const KEY_BYTES: usize = 23;

/// The key of a number.
pub(crate) fn key(number: usize) -> String {
    let key = format!("tenant-{number:016x}");
    debug_assert_eq!(key.len(), KEY_BYTES);
    key
}

/// Requests, each with its own copy of its key in the order of the sequence:
/// like keys that were just read from a connection, they are at hand when
/// they are asked for.
pub(crate) struct Sequence {
    pub(crate) numbers: Vec<u32>,
    pub(crate) keys: Vec<String>,
}

impl Sequence {
    fn new(numbers: Vec<u32>) -> Sequence {
        let keys = numbers.iter().map(|&number| key(number as usize)).collect();
        Sequence { numbers, keys }
    }

    /// Every key as likely as another.
    pub(crate) fn uniform(keys: usize, length: usize) -> Sequence {
        let mut random = Random(1);
        Sequence::new((0..length).map(|_| random.below(keys)).collect())
    }

    /// The key of rank `r` as likely as `1 / r` (Zipf's law, exponent 1).
    pub(crate) fn zipf(keys: usize, length: usize) -> Sequence {
        let mut random = Random(2);
        let mut sum = 0.0;
        let cumulated: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        // Neighbours in rank are not to be neighbours in memory.
        let mut places: Vec<u32> = (0..keys as u32).collect();
        for i in (1..keys).rev() {
            places.swap(i, random.below(i + 1) as usize);
        }
        let draw = |_| places[cumulated.partition_point(|&c| c < random.unit() * sum).min(keys - 1)];
        Sequence::new((0..length).map(draw).collect())
    }

    /// Where a round's part of the sequence begins: each thread goes through
    /// its own half, round after round.
    pub(crate) fn start(&self, thread: usize, number: usize, calls: usize) -> usize {
        let half = self.numbers.len() / 2;
        let parts = (half / calls).max(1);
        (thread * half + number % parts * calls) % self.numbers.len()
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> u32 {
        ((u128::from(self.next()) * n as u128) >> 64) as u32 // below n, and keys are fewer than 2^32
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
