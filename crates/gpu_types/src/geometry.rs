//! Grid, block and shared memory of a kernel launch: what launchers compute, and what the driver and the emulator take.

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Geometry {
    /// Largest grid in x, y, z; every CUDA device has these limits.
    pub const MAX_GRID: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];

    /// A grid of one-dimensional blocks, or `None` if it is empty: there is nothing to launch.
    ///
    /// # Errors
    /// [`LaunchError::Grid`] if an axis of the grid is beyond [`Geometry::MAX_GRID`].
    pub fn new(
        grid: [usize; 3],
        num_threads: usize,
        shared_bytes: usize,
    ) -> Result<Option<Self>, LaunchError> {
        for (axis, (&blocks, &limit)) in grid.iter().zip(&Self::MAX_GRID).enumerate() {
            if blocks > limit {
                return Err(LaunchError::Grid { axis: ["x", "y", "z"][axis], blocks, limit });
            }
        }
        if grid.contains(&0) {
            return Ok(None);
        }
        Ok(Some(Geometry {
            grid: grid.map(|blocks| blocks as u32),
            block: [num_threads as u32, 1, 1],
            shared_bytes: shared_bytes as u32,
        }))
    }
}

/// Why no launch can be made of an operation's shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchError {
    /// More blocks along an axis than a grid can have.
    Grid {
        /// `x`, `y` or `z`.
        axis: &'static str,
        /// Blocks that the shapes need.
        blocks: usize,
        /// Blocks that a grid can have.
        limit: usize,
    },
    /// A size or stride that the kernel cannot take.
    Shape {
        /// Name of the size.
        what: &'static str,
        /// Value of the size.
        value: usize,
        /// What would be right.
        expected: &'static str,
    },
}

impl core::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LaunchError::Grid { axis, blocks, limit } => {
                write!(f, "a grid of {blocks} blocks in {axis}: at most {limit} can be launched")
            }
            LaunchError::Shape { what, value, expected } => {
                write!(f, "{what} is {value}: expected {expected}")
            }
        }
    }
}

impl core::error::Error for LaunchError {}
