-- Sliding window: two counters, the earlier one weighted by how much of it
-- the window still covers. The twin of core/src/algorithm/sliding_window.rs.
--
-- The state is the end of the current window, both counts and the period:
-- w <s> <n> <current> <previous> <period s> <period n>. The TTL ends with the
-- window after the current one. Counts of another period are carried over as
-- those of the current window.

-- a / b < c / d, exactly: their continued fractions are compared. All are
-- below 2^53, and b and d are not 0.
local function less(a, b, c, d)
  while true do
    local p, q = (a - a % b) / b, (c - c % d) / d
    if p ~= q then return p < q end
    a, c = a % b, c % d
    if c == 0 then return false end
    if a == 0 then return true end
    a, b, c, d = d, c, b, a
  end
end

function kinds.w(key)
  local limit, period_s, period_n = number(), number(), number()
  -- In microseconds where nanoseconds would not be exact.
  local unit = period_s > 4e6 and 1000 or 1
  local period = (period_s * 1e9 + period_n) / unit
  local state = words(call('GET', key), 'w')
  local end_s, end_n = window_end(s, n, period_s, period_n)
  local current, previous, is_changed = 0, 0, false
  if state then
    local is_same = state[5] == period_s and state[6] == period_n
    local ahead = span(s, n, state[1], state[2])
    if is_same and ahead > 0 then
      -- The window of now, or a later one: then the clock stands at its beginning.
      current, previous, end_s, end_n = state[3], state[4], state[1], state[2]
    elseif is_same then
      if span(state[1], state[2], end_s, end_n) == period * unit then previous = state[3] end
    else
      local old = state[5] * 1e9 + state[6]
      if ahead > 0 then current = state[3] + state[4] elseif ahead > -old then current = state[3] end
      if current > limit then current = limit end
      is_changed = current > 0
    end
  end
  local rest = (end_s - s) * (1e9 / unit) + ceil(end_n - n, unit) -- of the current window
  if rest > period then rest = period end

  -- Whole units that the previous window still weighs.
  local function weight()
    if previous == 0 then return 0 end
    local units = floor(previous * (rest / period))
    if units > 0 and less(rest, period, units, previous) then return units - 1 end
    if not less(rest, period, units + 1, previous) then return units + 1 end
    return units
  end

  -- Not above the longest time that may be covered of a window of `count`
  -- units for it to weigh less than `room`.
  local function cover(room, count)
    if count < room then return period end
    local most = floor(room / count * period * (1 - 2 ^ -50)) - 1
    return most > 0 and most or 0
  end

  local account = {}

  function account.left()
    local units = limit - current - weight()
    return units > 0 and units or 0
  end

  function account.fits(units)
    if units == 0 then return true end
    local room = limit - current - units + 1
    if room <= 0 then return false end
    return previous == 0 or less(rest, period, room, previous)
  end

  function account.charge(units)
    current, is_changed = current + units, true
  end

  function account.back(units, then_s, then_n)
    local charged_s, charged_n = window_end(then_s, then_n, period_s, period_n)
    local windows = span(charged_s, charged_n, end_s, end_n) / unit
    if windows == 0 then
      current = current > units and current - units or 0
    elseif windows == period then
      previous = previous > units and previous - units or 0
    else
      return
    end
    is_changed = true
  end

  function account.save()
    local ms = ceil((rest + period) * unit, 1e6)
    if ms < 2 then ms = 2 end
    if not is_changed then
      repair(key, ms)
    elseif current == 0 and previous == 0 then
      call('DEL', key)
    else
      local text = ('w %d %d %d %d %d %d'):format(end_s, end_n, current, previous, period_s, period_n)
      call('SET', key, text, 'PX', ('%d'):format(ms))
    end
  end

  function account.tell(units, ok)
    local fits, wait, reset = ok or account.fits(units), 0, 0
    if not fits then
      wait = -1
      if units <= limit then
        local room = limit - units + 1
        local here = room - current
        local covered = here > 0 and cover(here, previous) or 0
        if covered > 0 then
          wait = rest - covered
          if wait < 0 then wait = 0 end
        else
          wait = rest + period - cover(room, current)
        end
        wait = ceil(wait * unit, 1000)
      end
    end
    if current > 0 then reset = rest + period elseif previous > 0 then reset = rest end
    return fits, account.left(), wait, ceil(reset * unit, 1000), 0
  end

  return account
end
