//! Boxes of tensors, with an oracle that moves one element at a time.

use conformance_kernels::tensor::{tensor_1d, tensor_2d, tensor_3d, tensor_4d};
use cuda_std::launch::{Geometry, Launch};
use cuda_std::tensor_map::{Element, L2Promotion, Swizzle, TensorMapSpec};
use half::{bf16, f16};

use crate::inputs::words_of_bytes;
use crate::operands::swizzled;
use crate::{Buffer, Case, Pointers, Want};

/// Blocks that reduce into the same elements.
const NUM_ADDING: u32 = 3;

/// The operation on boxes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Load,
    Store,
    Add,
}

/// A tensor, its boxes, and the corners that they are moved at: inside, over each edge, outside.
struct Task {
    name: &'static str,
    spec: TensorMapSpec,
    corners: Vec<Vec<i32>>,
}

fn task(
    name: &'static str,
    (element, swizzle): (Element, Swizzle),
    (dims, strides_bytes, box_dims): (&[u64], &[u64], &[u32]),
    corners: &[&[i32]],
) -> Task {
    let (dims, strides_bytes) = (dims.to_vec(), strides_bytes.to_vec());
    let box_dims = box_dims.to_vec();
    let l2_promotion = L2Promotion::default();
    let spec =
        TensorMapSpec { address: 0, element, dims, strides_bytes, box_dims, swizzle, l2_promotion };
    Task { name, spec, corners: corners.iter().map(|corner| corner.to_vec()).collect() }
}

#[rustfmt::skip]
fn tasks() -> Vec<Task> {
    use Element::*;
    use Swizzle::*;
    vec![
        task("1d_f32", (F32, None), (&[100], &[], &[32]), &[&[0], &[-4], &[88], &[100], &[-32]]),
        task("1d_u8", (U8, None), (&[304], &[], &[256]), &[&[16], &[-240], &[-256]]),
        task("1d_u32", (U32, B128), (&[61], &[], &[32]), &[&[-8], &[28], &[60]]),
        task("2d_f16_none", (F16, None), (&[72, 21], &[160], &[24, 10]), &[
            &[0, 0], &[24, 10], &[56, 15], &[-8, -7], &[72, 0],
        ]),
        task("2d_f16_b32", (F16, B32), (&[72, 21], &[160], &[16, 20]), &[
            &[0, 0], &[16, 1], &[64, 15], &[-8, -7], &[0, 21],
        ]),
        task("2d_f16_b64", (F16, B64), (&[72, 21], &[144], &[32, 20]), &[
            &[0, 0], &[40, 1], &[64, 15], &[-8, -7], &[64, 20],
        ]),
        task("2d_f16_b128", (F16, B128), (&[200, 40], &[416], &[64, 32]), &[
            &[0, 0], &[64, 8], &[152, 20], &[-8, -7], &[0, 40], &[192, 39],
        ]),
        task("2d_inside", (F16, B128), (&[200, 40], &[416], &[64, 32]), &[&[0, 0], &[64, 8]]),
        task("2d_over_end", (F16, B128), (&[200, 40], &[416], &[64, 32]), &[&[152, 20]]),
        task("2d_row_before", (F16, B128), (&[200, 40], &[416], &[64, 32]), &[&[0, -7]]),
        task("2d_column_before", (F16, B128), (&[200, 40], &[416], &[64, 32]), &[&[-8, 0]]),
        task("2d_outside", (F16, B128), (&[200, 40], &[416], &[64, 32]), &[&[0, 40], &[200, 0]]),
        task("2d_bf16_b128", (Bf16, B128), (&[64, 33], &[128], &[64, 24]), &[&[0, 0], &[32, 9]]),
        task("2d_u16_b32", (U16, B32), (&[48, 20], &[96], &[16, 20]), &[&[16, 0], &[40, -2]]),
        task("3d_u32_b64", (U32, B64), (&[24, 9, 5], &[112, 1056], &[16, 4, 3]), &[
            &[0, 3, 1], &[-16, 7, 3], &[0, -4, 0], &[12, 6, 4],
        ]),
        task("3d_bf16_none", (Bf16, None), (&[40, 5, 4], &[80, 400], &[8, 3, 2]), &[
            &[8, 1, 1], &[32, 3, 3], &[-8, -2, -1],
        ]),
        // An outer dimension with a smaller stride: heads outside tokens.
        task("4d_f16_b128", (F16, B128), (&[64, 10, 3, 2], &[384, 128, 3840], &[64, 8, 1, 2]), &[
            &[0, 0, 2, 0], &[0, 5, 1, 0], &[-8, -1, 0, 1],
        ]),
        task("4d_f32_b32", (F32, B32), (&[10, 3, 2, 3], &[48, 144, 288], &[8, 2, 2, 2]), &[
            &[0, 1, 0, 1], &[4, 2, 1, 2], &[-4, -1, -1, -1],
        ]),
        task("4d_u64_b128", (U64, B128), (&[16, 3, 2, 2], &[128, 384, 768], &[16, 2, 2, 2]), &[
            &[0, 1, 0, 1], &[-2, 0, -1, 0],
        ]),
    ]
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let hows = [How::Load, How::Store, How::Add];
    let cases = |how| tasks().into_iter().filter_map(move |task| task.case(how));
    hows.into_iter().flat_map(cases).collect()
}

/// Small integers, whose sums are exact in every type.
fn numbers(len: usize, seed: usize) -> Vec<u32> {
    (0..len).map(|i| 1 + ((i * 37 + i / 64 * 11 + seed) % 30) as u32).collect()
}

impl Task {
    /// Elements of the tensor's memory, with one row after the last.
    fn num_elements(&self) -> usize {
        let outer = self.spec.strides_bytes.iter().zip(&self.spec.dims[1..]);
        let last: u64 = outer.map(|(stride, dim)| stride * (dim - 1)).sum();
        let size = self.spec.element.size_bytes();
        ((last + self.spec.dims[0] * size).next_multiple_of(16) / size + 64) as usize
    }

    /// Indices of the elements of the box at `corner`, in shared memory and in the tensor's memory;
    /// the latter `None` out of bounds.
    fn places(&self, corner: &[i32]) -> Vec<(usize, Option<usize>)> {
        let TensorMapSpec { element, dims, strides_bytes, box_dims, swizzle, .. } = &self.spec;
        let size = element.size_bytes();
        let swizzle = match swizzle {
            Swizzle::None => cuda_std::wgmma::Swizzle::None,
            Swizzle::B32 => cuda_std::wgmma::Swizzle::B32,
            Swizzle::B64 => cuda_std::wgmma::Swizzle::B64,
            Swizzle::B128 => cuda_std::wgmma::Swizzle::B128,
        };
        let place = |number: u32| {
            let (mut rest, mut global) = (number, Some(0));
            for (axis, &box_dim) in box_dims.iter().enumerate() {
                let at = i64::from(corner[axis]) + i64::from(rest % box_dim);
                rest /= box_dim;
                let stride = if axis == 0 { size } else { strides_bytes[axis - 1] };
                let inside = (0..dims[axis] as i64).contains(&at);
                global = global.filter(|_| inside).map(|sum| sum + at as u64 * stride);
            }
            let shared = swizzled(number as usize * size as usize, swizzle);
            (shared / size as usize, global.map(|byte| (byte / size) as usize))
        };
        (0..box_dims.iter().product()).map(place).collect()
    }

    /// The numbers as elements.
    fn words(&self, numbers: &[u32]) -> Vec<u32> {
        let float = |number: u32| number as f32;
        let bytes = numbers.iter().flat_map(|&number| match self.spec.element {
            Element::F32 => float(number).to_le_bytes().to_vec(),
            Element::F16 => f16::from_f32(float(number)).to_le_bytes().to_vec(),
            Element::Bf16 => bf16::from_f32(float(number)).to_le_bytes().to_vec(),
            Element::U8 => vec![number as u8],
            Element::U16 => (number as u16).to_le_bytes().to_vec(),
            Element::U32 => number.to_le_bytes().to_vec(),
            Element::U64 => u64::from(number).to_le_bytes().to_vec(),
        });
        words_of_bytes(&bytes.collect::<Vec<u8>>())
    }

    /// The launch of `how` with corners, tensor map and images.
    fn launch(&self, how: How) -> impl Fn(&Pointers) -> Launch + Send + Sync + 'static {
        let (rank, num_boxes) = (self.spec.dims.len(), self.corners.len() as u32);
        let box_bytes = self.spec.box_bytes() as u32;
        let (box_words, shared_bytes) = (box_bytes / 4, box_bytes + size_of::<u64>() as u32);
        let grid = [if how == How::Add { NUM_ADDING } else { 1 }, 1, 1];
        let geometry = Geometry { grid, block: [32, 1, 1], shared_bytes };
        move |p: &Pointers| {
            macro_rules! launch {
                ($name:ident) => {{
                    let instance = $name::Instance::ALL[how as usize];
                    let (corners, map, images) = (p.at(0), p.map(2), p.at(3));
                    $name::Args { num_boxes, box_words, corners, map, images }
                        .launch(instance, geometry)
                }};
            }
            match rank {
                1 => launch!(tensor_1d),
                2 => launch!(tensor_2d),
                3 => launch!(tensor_3d),
                _ => launch!(tensor_4d),
            }
        }
    }

    /// Corners, tensor, tensor map, images; `None` if no box can be moved this way: an H200 cannot
    /// store a box with negative coordinates, and stores units of 16 bytes, even across the end of
    /// a row. Not all elements can be added.
    fn case(mut self, how: How) -> Option<Case> {
        use Element::{U8, U16, U64};
        if how == How::Add && matches!(self.spec.element, U8 | U16 | U64) {
            return None;
        }
        let row_bytes = self.spec.dims[0] * self.spec.element.size_bytes();
        if how != How::Load && !row_bytes.is_multiple_of(16) {
            return None;
        }
        self.corners.retain(|corner| how == How::Load || corner.iter().all(|&at| at >= 0));
        if self.corners.is_empty() {
            return None;
        }
        let corners: Vec<u32> = self.corners.iter().flatten().map(|&at| at as u32).collect();
        let box_elements = self.spec.box_dims.iter().product::<u32>() as usize;
        let mut tensor = numbers(self.num_elements(), 0);
        let before = self.words(&tensor);
        let mut images = match how {
            How::Load => vec![0; self.corners.len() * box_elements],
            How::Store | How::Add => numbers(self.corners.len() * box_elements, 7),
        };
        for (corner, image) in self.corners.iter().zip(images.chunks_mut(box_elements)) {
            for (shared, global) in self.places(corner) {
                let Some(global) = global else { continue };
                match how {
                    How::Load => image[shared] = tensor[global],
                    How::Store => tensor[global] = image[shared],
                    How::Add => tensor[global] += NUM_ADDING * image[shared],
                }
            }
        }
        let (tensor, images) = (self.words(&tensor), self.words(&images));
        let (tensor, images) = match how {
            How::Load => (Buffer::words(&tensor), Buffer::Out(Want::Words(images))),
            How::Store | How::Add => (Buffer::changed(&before, tensor), Buffer::words(&images)),
        };
        let how_name = ["load", "store", "add"][how as usize];
        let launch = self.launch(how);
        let map = Buffer::TensorMap(1, self.spec);
        let buffers = vec![Buffer::words(&corners), tensor, map, images];
        Some(Case::new(format!("tensor_{how_name}_{}", self.name), buffers, launch))
    }
}
