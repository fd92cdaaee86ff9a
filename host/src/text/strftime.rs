//! The date for chat templates and reports: `strftime_now("%d %b %Y")`.

use std::time::SystemTime;

use jiff::fmt::StdFmtWrite;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// The codes of C's `strftime`; `%f` is Python's.
const CODES: &str = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%f";

/// Characters of a field at most.
const MAX_WIDTH: usize = 1000;

/// `time` in UTC.
#[cfg(any(test, feature = "cli"))]
pub(crate) fn strftime_utc(format: &str, time: SystemTime) -> Result<String, String> {
    strftime(format, time, TimeZone::UTC)
}

/// `time` in the time zone of `TZ`, else of `/etc/localtime`.
pub(crate) fn strftime_local(format: &str, time: SystemTime) -> Result<String, String> {
    strftime(format, time, TimeZone::system())
}

/// As Python's `datetime.strftime` of a time that names no zone: `%Z` and `%z` are empty.
fn strftime(format: &str, time: SystemTime, zone: TimeZone) -> Result<String, String> {
    let time = Timestamp::try_from(time).map_err(|error| error.to_string())?.to_zoned(zone);
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, field)) = rest.split_once('%') {
        text.push_str(before);
        let is_flag = |char: char| "-_0^#".contains(char);
        let width = field.trim_start_matches(is_flag);
        let flags = &field[..field.len() - width.len()];
        // `%Ey` and `%Oy` are `%y` in C's locale.
        let after = width.trim_start_matches(|char: char| char.is_ascii_digit());
        let width = &width[..width.len() - after.len()];
        let after = after.strip_prefix(['E', 'O']).unwrap_or(after);
        let code = after.chars().next();
        let is_wide =
            !width.is_empty() && !width.parse().is_ok_and(|width: usize| width <= MAX_WIDTH);
        let Some(code) = code.filter(|code| CODES.contains(*code) && !is_wide) else {
            let end = after.chars().next().map_or(0, char::len_utf8);
            let unknown = &field[..field.len() - after.len() + end];
            return Err(format!("strftime_now does not know '%{unknown}'"));
        };
        match code {
            'z' | 'Z' => {}
            'f' => text.push_str(&format!("{:06}", time.subsec_nanosecond() / 1000)),
            _ => text.push_str(&formatted(&format!("%{flags}{width}{code}"), &time)?),
        }
        rest = &after[code.len_utf8()..];
    }
    Ok(text + rest)
}

fn formatted(field: &str, time: &Zoned) -> Result<String, String> {
    let mut text = String::new();
    let config = Config::new().custom(PosixCustom::new());
    BrokenDownTime::from(time)
        .format_with_config(&config, field, &mut StdFmtWrite(&mut text))
        .map_err(|error| format!("strftime_now('{field}'): {error}"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FORMATS: &str = "%d %b %Y|%A %a %B %m %y|%H:%M:%S %I %p|%F %T|100%%|%-d %e %_d %j|%U %W %V \
                           %G %g %u %w|%C %D %h|%c|%x|%X|%k %l %P|%s|%n%t|%R %r|%^a %#p|%Ey %Od %5d";

    /// What `FORMATS` is for GNU `date -d @SECONDS`, with `TZ` as it stands.
    const EXPECTED: [(&str, u64, &str); 4] = [
        (
            "UTC0",
            0,
            "01 Jan 1970|Thursday Thu January 01 70|00:00:00 12 AM|1970-01-01 00:00:00|100%|1  1  1 001|00 00 01 1970 70 4 4|19 01/01/70 Jan|Thu Jan  1 00:00:00 1970|01/01/70|00:00:00| 0 12 am|0|\n\t|00:00 12:00:00 AM|THU am|70 01 00001",
        ),
        (
            "UTC0",
            951_827_696,
            "29 Feb 2000|Tuesday Tue February 02 00|12:34:56 12 PM|2000-02-29 12:34:56|100%|29 29 29 060|09 09 09 2000 00 2 2|20 02/29/00 Feb|Tue Feb 29 12:34:56 2000|02/29/00|12:34:56|12 12 pm|951827696|\n\t|12:34 12:34:56 PM|TUE pm|00 29 00029",
        ),
        (
            "XST+10",
            4_107_542_399,
            "28 Feb 2100|Sunday Sun February 02 00|13:59:59 01 PM|2100-02-28 13:59:59|100%|28 28 28 059|09 08 08 2100 00 7 0|21 02/28/00 Feb|Sun Feb 28 13:59:59 2100|02/28/00|13:59:59|13  1 pm|4107542399|\n\t|13:59 01:59:59 PM|SUN pm|00 28 00028",
        ),
        (
            "CET-1CEST,M3.5.0,M10.5.0/3",
            1_751_371_509,
            "01 Jul 2025|Tuesday Tue July 07 25|14:05:09 02 PM|2025-07-01 14:05:09|100%|1  1  1 182|26 26 27 2025 25 2 2|20 07/01/25 Jul|Tue Jul  1 14:05:09 2025|07/01/25|14:05:09|14  2 pm|1751371509|\n\t|14:05 02:05:09 PM|TUE pm|25 01 00001",
        ),
    ];

    #[test]
    fn formats_as_date_does() {
        for (zone, seconds, expected) in EXPECTED {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let zone = TimeZone::posix(zone).expect("a time zone");
            assert_eq!(strftime(FORMATS, time, zone).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn zones_are_empty_and_unknown_codes_are_named() {
        let utc = |format| strftime_utc(format, SystemTime::UNIX_EPOCH + Duration::from_micros(42));
        // As `datetime.fromtimestamp(0).strftime` has them.
        assert_eq!(utc("[%Z%z] %f").as_deref(), Ok("[] 000042"));
        for format in ["%Q", "%", "a%", "%-", "%-Q", "%E", "%99999d", "%é"] {
            let error = utc(format).expect_err(format);
            assert!(error.contains(format.trim_start_matches('a')), "{error}");
        }
    }
}
