-- Gives back units that were charged some time ago and not used: to every
-- limit what its kind says. Replies with 1.
local units, age_s, age_n = number(), number(), number()
local id = word()
local then_s, then_n = s - age_s, n - age_n
if then_n < 0 then then_s, then_n = then_s - 1, then_n + 1e9 end
for _, key in ipairs(KEYS) do
  local account = kinds[word()](key, id)
  account.back(units, then_s, then_n)
  account.save()
end
return 1
