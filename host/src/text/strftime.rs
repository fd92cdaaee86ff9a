//! The date for chat templates and reports: `strftime_now("%d %b %Y")`, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `time` in the format of C's `strftime`.
pub(crate) fn strftime(format: &str, time: SystemTime) -> Result<String, Error> {
    format_seconds(format, time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// Formats the time `seconds` after the start of 1970.
fn format_seconds(format: &str, seconds: u64) -> Result<String, Error> {
    let days = seconds / 86_400;
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let month_name = MONTHS[(month - 1) as usize];
    let weekday = WEEKDAYS[((days + 4) % 7) as usize];
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            text.push(char);
            continue;
        }
        text += &match chars.next() {
            Some('Y') => format!("{year}"),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('d') => format!("{day:02}"),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{hour12:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            other => {
                let code: String = other.into_iter().collect();
                let reason = format!("strftime_now does not know '%{code}'");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        };
    }
    Ok(text)
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 0000-03-01: a year that ends with February
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are those of GNU `date -u -d @SECONDS +FORMAT`.
    #[test]
    fn formats_as_date_does() {
        let format = "%d %b %Y|%A %a %B %m %y|%H:%M:%S %I %p|%F %T|100%%";
        for (seconds, expected) in [
            (0, "01 Jan 1970|Thursday Thu January 01 70|00:00:00 12 AM|1970-01-01 00:00:00|100%"),
            (
                951_827_696,
                "29 Feb 2000|Tuesday Tue February 02 00|12:34:56 12 PM|2000-02-29 12:34:56|100%",
            ),
            (
                4_107_542_399,
                "28 Feb 2100|Sunday Sun February 02 00|23:59:59 11 PM|2100-02-28 23:59:59|100%",
            ),
        ] {
            assert_eq!(format_seconds(format, seconds).expect("known codes"), expected);
        }
        assert!(format_seconds("%Q", 0).is_err());
        assert!(format_seconds("%", 0).is_err());
    }
}
