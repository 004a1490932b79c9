//! The figure: what leases of a size cost the server, and what they do to the
//! limit. No background, and colours that read on white and on dark.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{INSTANCES, LEASES, Outcome};

const TEXT: RGBColor = RGBColor(125, 132, 142);
const LINES: [RGBColor; 3] = [RGBColor(63, 136, 245), RGBColor(222, 128, 36), RGBColor(47, 158, 104)];
const SIZE: (u32, u32) = (880, 400);

type Panel<'p> = DrawingArea<SVGBackend<'p>, Shift>;

/// Draws what belongs to the sweep of lease sizes.
pub(super) fn draw(outcomes: &[Outcome], path: &str) -> Result<(), String> {
    let whole = SVGBackend::new(path, SIZE).into_drawing_area();
    let panels = whole.split_evenly((1, 2));
    let [cost, accuracy] = &panels[..] else { return Err("two panels".to_owned()) };
    let commands = |outcome: &Outcome| outcome.hot_commands_per_100_requests;
    let title = "Redis commands per 100 requests (hot keys)";
    panel(cost, outcomes, title, (0.0, 120.0), commands).map_err(|error| error.to_string())?;
    let title = "Admitted, % of the limit (saturated keys)";
    panel(accuracy, outcomes, title, (90.0, 101.0), |outcome| outcome.accuracy_percent)
        .map_err(|error| error.to_string())?;
    whole.present().map_err(|error| error.to_string())
}

fn panel(
    area: &Panel<'_>,
    outcomes: &[Outcome],
    title: &str,
    (low, high): (f64, f64),
    value: impl Fn(&Outcome) -> f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let text = |size: i32| ("sans-serif", size).into_font().color(&TEXT);
    // Sizes stand side by side, each as far from the next.
    let last = LEASES.len() as f64 - 1.0;
    let mut chart = ChartBuilder::on(area)
        .caption(title, text(17))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..last, low..high)?;
    chart
        .configure_mesh()
        .axis_style(TEXT)
        .bold_line_style(TEXT.mix(0.3))
        .light_line_style(TRANSPARENT)
        .label_style(text(13))
        .axis_desc_style(text(14))
        .x_labels(LEASES.len())
        .x_label_formatter(&|place| LEASES.get(place.round() as usize).map_or(String::new(), u64::to_string))
        .x_desc("lease.max, units (0: no leases)")
        .draw()?;
    for (instances, color) in INSTANCES.into_iter().zip(LINES) {
        let points = LEASES.iter().enumerate().filter_map(|(place, lease)| {
            let is_it = |outcome: &&Outcome| {
                outcome.name == "lease size" && (outcome.instances, outcome.lease_max) == (instances, *lease)
            };
            outcomes.iter().find(is_it).map(|outcome| (place as f64, value(outcome).clamp(low, high)))
        });
        let points: Vec<(f64, f64)> = points.collect();
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
        chart
            .draw_series(line)?
            .label(format!("{instances} instances"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .border_style(TRANSPARENT)
        .label_font(text(14))
        .draw()?;
    Ok(())
}
