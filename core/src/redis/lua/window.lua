-- Windows: where they begin and end, for fixed_window.lua and
-- sliding_window.lua. The twin of window_end and month_end in
-- core/src/algorithm/fixed_window.rs.

-- The instant so many nanoseconds later, exact below 2^53.
local function later(at_s, at_n, span)
  local over = at_n + span
  return at_s + floor(over / 1e9), over % 1e9
end

-- The end of the window that contains this instant, at whole multiples of the
-- period since 1970. A period that is not of whole seconds is below 10 days.
local function window_end(at_s, at_n, period_s, period_n)
  if period_n == 0 then return at_s - at_s % period_s + period_s, 0 end
  local period = period_s * 1e9 + period_n
  local rest = at_s % period
  for _ = 1, 9 do rest = rest * 10 % period end
  return later(at_s, at_n, period - (rest + at_n) % period)
end

-- The end of the calendar month, UTC. Source: Hinnant,
-- "chrono-compatible low-level date algorithms".
local function month_end(at_s)
  local day = floor(at_s / 86400) + 719468
  local era, of_era = floor(day / 146097), day % 146097
  local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
  local month = floor((5 * of_year + 2) / 153)
  local after = floor((153 * (month + 1) + 2) / 5)
  if month == 11 then
    local next = era * 400 + year + 1
    after = (next % 4 == 0 and (next % 100 ~= 0 or next % 400 == 0)) and 366 or 365
  end
  return at_s - at_s % 86400 + (after - of_year) * 86400, 0
end

-- Nanoseconds from one instant to another; its sign is exact.
local function span(from_s, from_n, to_s, to_n)
  return (to_s - from_s) * 1e9 + (to_n - from_n)
end
