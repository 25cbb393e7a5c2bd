//! `worker_cpu_affinity`: which processors each loop may run on. nginx binds its worker processes;
//! here the loops are threads of one process, and are bound one by one.

/// `worker_cpu_affinity` as it was written; the loops ask for their set by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CpuAffinity {
    /// The system decides.
    #[default]
    System,
    /// One processor for each loop, in turn, out of these.
    Auto(Vec<usize>),
    /// One set for each loop; the last one for all further loops.
    Masks(Vec<Vec<usize>>),
}

/// The size of the kernel's `cpu_set_t`: no mask can name a processor beyond it.
const MAX_PROCESSORS: usize = 1024;

impl CpuAffinity {
    /// Reads the arguments: `auto [mask]` or masks. The errors are nginx's messages.
    pub(crate) fn parse(words: &[&[u8]], processors: usize) -> Result<CpuAffinity, String> {
        let Some((first, rest)) = words.split_first() else {
            return Ok(CpuAffinity::System);
        };
        if *first != b"auto" {
            return words
                .iter()
                .map(|word| parse_mask(word))
                .collect::<Result<_, _>>()
                .map(CpuAffinity::Masks);
        }
        match rest {
            [] => Ok(CpuAffinity::Auto(
                (0..processors.min(MAX_PROCESSORS)).collect(),
            )),
            [mask] => parse_mask(mask).map(CpuAffinity::Auto),
            _ => Err("invalid number of arguments in \"worker_cpu_affinity\" directive".to_owned()),
        }
    }

    /// The warning about a number of masks that is not that of the loops.
    pub(crate) fn warning(&self, loops: usize) -> Option<String> {
        let masks = self
            .masks()
            .filter(|masks| *masks != 1 && *masks != loops)?;
        Some(format!(
            "the number of \"worker_processes\" is not equal to the number of \"worker_cpu_affinity\" masks \
             ({masks}), using last mask for remaining worker processes"
        ))
    }

    /// The number of masks, if the processors were given loop by loop. nginx warns when it differs
    /// from the number of workers.
    pub(crate) fn masks(&self) -> Option<usize> {
        match self {
            CpuAffinity::Masks(masks) => Some(masks.len()),
            CpuAffinity::System | CpuAffinity::Auto(_) => None,
        }
    }

    /// The processors of a loop; `None` means all. A loop beyond the last mask takes the last one,
    /// as with nginx.
    pub(crate) fn of_loop(&self, index: usize) -> Option<Vec<usize>> {
        match self {
            CpuAffinity::System => None,
            // `auto 0000`: no processor left to choose from, so the thread is not bound.
            CpuAffinity::Auto(processors) if processors.is_empty() => None,
            CpuAffinity::Auto(processors) => Some(vec![processors[index % processors.len()]]),
            CpuAffinity::Masks(masks) => masks.get(index).or(masks.last()).cloned(),
        }
    }
}

/// Reads a mask such as `0101`: as in nginx the last digit is processor 0, and blanks may group the
/// digits.
fn parse_mask(word: &[u8]) -> Result<Vec<usize>, String> {
    if word.len() > MAX_PROCESSORS {
        return Err(format!(
            "\"worker_cpu_affinity\" supports up to {MAX_PROCESSORS} CPUs only"
        ));
    }
    // An empty set is kept: the kernel refuses it when the thread is bound, and the refusal is logged there.
    let mut processors = Vec::new();
    for (number, digit) in word.iter().rev().filter(|byte| **byte != b' ').enumerate() {
        match digit {
            b'0' => {}
            b'1' => processors.push(number),
            other => {
                return Err(format!(
                    "invalid character \"{}\" in \"worker_cpu_affinity\"",
                    char::from(*other)
                ));
            }
        }
    }
    Ok(processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_from_the_right() {
        let affinity = CpuAffinity::parse(&[b"0001", b"10 10"], 4).expect("valid");
        assert_eq!(affinity.of_loop(0), Some(vec![0]));
        assert_eq!(affinity.of_loop(1), Some(vec![1, 3]));
        assert_eq!(
            affinity.of_loop(7),
            Some(vec![1, 3]),
            "the last mask is for the rest"
        );
    }

    #[test]
    fn auto_takes_one_processor_each() {
        let affinity = CpuAffinity::parse(&[b"auto"], 2).expect("valid");
        assert_eq!(
            [
                affinity.of_loop(0),
                affinity.of_loop(1),
                affinity.of_loop(2)
            ],
            [Some(vec![0]), Some(vec![1]), Some(vec![0])]
        );
        assert_eq!(
            CpuAffinity::parse(&[b"auto", b"100"], 8)
                .expect("valid")
                .of_loop(5),
            Some(vec![2])
        );
    }

    #[test]
    fn errors_are_nginx_s() {
        let error = |words: &[&[u8]]| CpuAffinity::parse(words, 2).expect_err("refused");
        assert_eq!(
            error(&[b"012"]),
            "invalid character \"2\" in \"worker_cpu_affinity\""
        );
        assert_eq!(
            error(&[b"auto", b"1", b"1"]),
            "invalid number of arguments in \"worker_cpu_affinity\" directive"
        );
    }
}
