//! Names of regions, for `$geoip_region_name`: databases have codes only.
//!
//! The codes in `regions.txt` are those of the states for the United States and Canada, and FIPS 10-4 elsewhere. Countries
//! that are not there have no names: `$geoip_region` has the code.

use bstr::ByteSlice;

/// The name of a country's region. Few configurations ask, and the text is short: it is searched line by line.
pub(crate) fn region_name(country: &str, region: &[u8]) -> Option<&'static str> {
    let region = region.to_str().ok().filter(|region| !region.is_empty())?;
    include_str!("regions.txt").lines().find_map(|line| {
        let rest = line.strip_prefix(country)?.strip_prefix(' ')?;
        rest.strip_prefix(region)?.strip_prefix(' ')
    })
}
