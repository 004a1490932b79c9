-- All or none: what was admitted without asking is charged; then the cost to
-- every limit or to none; then as much more as fits, the same to all.
--
-- Replies with the units that were given on top of the cost, and five
-- integers for each limit: see request.lua.
local cost, more, share, owed = number(), number(), number(), number()
local id = word()
local accounts, ok = {}, true
for i, key in ipairs(KEYS) do
  local account = kinds[word()](key, id)
  accounts[i] = account
  if owed > 0 then account.charge(owed) end
  ok = ok and account.fits(cost)
end
local granted = 0
if ok then
  for _, account in ipairs(accounts) do
    if cost > 0 then account.charge(cost) end
    if account.is_leaky then more = 0 end
  end
  if more > 0 then
    granted = more
    for _, account in ipairs(accounts) do
      local part = floor(account.left() / share)
      if part < granted then granted = part end
    end
    if granted > 0 then
      for _, account in ipairs(accounts) do account.charge(granted) end
    end
  end
end
local reply = { granted }
for _, account in ipairs(accounts) do
  account.save()
  local fits, left, wait, reset, delay = account.tell(cost, ok)
  local last = #reply
  reply[last + 1] = fits and 1 or 0
  reply[last + 2], reply[last + 3], reply[last + 4], reply[last + 5] = left, wait, reset, delay
end
return reply
