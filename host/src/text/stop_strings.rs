//! Texts that end an answer.

/// Passes on a text up to the first stop string in it: the stop string that begins first, and nothing of it.
///
/// The text comes in parts, whose borders make no difference: what may be the start of a stop string is held back until
/// more of the text is known.
///
/// ```
/// let mut stops = halfwarp::StopStrings::new(["\nUser:"]);
/// assert_eq!(stops.push("Hello.\nUs"), "Hello.");
/// assert_eq!(stops.push("ually"), "\nUsually");
/// assert_eq!(stops.push(" so.\nUser: and"), " so.");
/// assert!(stops.is_stopped());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// What may be the start of a stop string, and what follows it.
    held: String,
    /// Which one has come.
    stopped_by: Option<usize>,
}

impl StopStrings {
    /// Ends a text before any of `stops`. An empty one is left out: it would end every text at once.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops = stops.into_iter().map(Into::into).filter(|stop: &String| !stop.is_empty());
        StopStrings { stops: stops.collect(), ..Self::default() }
    }

    /// Adds a part of the text, and returns what is known to come before every stop string; nothing after one.
    pub fn push(&mut self, text: &str) -> String {
        if self.is_stopped() {
            return String::new();
        }
        self.held.push_str(text);
        let (stop, start) = (self.first_stop(), self.first_start());
        let end = start.unwrap_or(self.held.len());
        match stop {
            // One that begins before it may still be completed.
            Some((stop, index)) if stop <= end => {
                self.stopped_by = Some(index);
                self.held.truncate(stop);
                std::mem::take(&mut self.held)
            }
            _ => {
                let rest = self.held.split_off(end);
                std::mem::replace(&mut self.held, rest)
            }
        }
    }

    /// Whether a stop string has come.
    pub fn is_stopped(&self) -> bool {
        self.stopped_by.is_some()
    }

    /// The stop string that has come, or that the text has where it ends here.
    pub fn stopped_by(&self) -> Option<&str> {
        let index = self.stopped_by.or_else(|| self.first_stop().map(|(_, index)| index))?;
        Some(&self.stops[index])
    }

    /// Ends the text: what was held back, up to a stop string.
    pub fn finish(mut self) -> String {
        if let Some((stop, _)) = self.first_stop() {
            self.held.truncate(stop);
        }
        self.held
    }

    /// Where the first stop string in the held text begins, and its number.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let starts = self.stops.iter().enumerate();
        starts.filter_map(|(index, stop)| Some((self.held.find(stop)?, index))).min()
    }

    /// Where an incomplete stop string begins that the held text may end with.
    fn first_start(&self) -> Option<usize> {
        let ends_in = |rest: &str| {
            self.stops.iter().any(|stop| rest.len() < stop.len() && stop.starts_with(rest))
        };
        let mut starts = self.held.char_indices().map(|(start, _)| start);
        starts.find(|&start| ends_in(&self.held[start..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Random texts of a few letters, cut at random, with random stop strings: what comes out is the whole text before
    /// the first of them, and no part comes later than it has to.
    #[test]
    fn the_text_ends_where_a_search_of_the_whole_text_finds_the_first() {
        const LETTERS: [char; 3] = ['a', 'b', 'é'];
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut random = |lens: std::ops::RangeInclusive<usize>| -> String {
            let len = rng.random_range(lens);
            (0..len).map(|_| LETTERS[rng.random_range(0..LETTERS.len())]).collect()
        };
        let mut num_stopped = 0;
        for _ in 0..20_000 {
            let stops: Vec<String> =
                (0..random(0..=3).chars().count()).map(|_| random(0..=5)).collect();
            let mut matcher = StopStrings::new(stops.clone());
            let (mut whole, mut out) = (String::new(), String::new());
            for _ in 0..6 {
                let part = random(0..=4);
                whole.push_str(&part);
                out.push_str(&matcher.push(&part));
                assert!(whole.starts_with(&out));
                let held = whole[out.len()..].chars().count();
                assert!(matcher.is_stopped() || held <= 2 * 5, "{held} characters held back");
            }
            let named = stops.iter().filter(|stop| !stop.is_empty());
            let first = named.filter_map(|stop| whole.find(stop)).min();
            let stop = matcher.stopped_by();
            assert_eq!(stop.is_some(), first.is_some(), "{stops:?} in {whole:?}");
            if let (Some(stop), Some(first)) = (stop, first) {
                assert!(whole[first..].starts_with(stop), "{stops:?} in {whole:?}: {stop}");
            }
            num_stopped += usize::from(matcher.is_stopped());
            out.push_str(&matcher.finish());
            assert_eq!(out, whole[..first.unwrap_or(whole.len())], "{stops:?} in {whole:?}");
        }
        assert!(num_stopped > 5000, "{num_stopped}");
    }

    #[test]
    fn an_earlier_stop_string_may_still_come() {
        let mut stops = StopStrings::new(["abcd", "c"]);
        assert_eq!((stops.push("xabc").as_str(), stops.is_stopped()), ("x", false));
        assert_eq!((stops.clone().push("d").as_str(), stops.is_stopped()), ("", false));
        assert_eq!((stops.push("e").as_str(), stops.is_stopped()), ("ab", true));
        assert_eq!(stops.push("more"), "");
        assert_eq!(stops.finish(), "");
    }
}
