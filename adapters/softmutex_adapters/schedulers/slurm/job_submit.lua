-- Slurm: a job that asks for a soft mutex is held until it is its turn. `softmutex slurm release` lets it go then.
--
--   #SBATCH --comment=softmutex=nightly-ftp            in the job's script
--   #SBATCH --comment=softmutex=nightly-ftp:timeout=2h
--
-- Install: JobSubmitPlugins=lua in slurm.conf, this file beside it, `scontrol reconfigure`.
-- A job that nobody releases stays held and harms nobody: `scontrol release JOB` by hand runs it all the same.

local function wants_turn(comment)
   return comment ~= nil and string.find(comment, "softmutex=", 1, true) == 1
end

function slurm_job_submit(job, partitions, uid)
   if wants_turn(job.comment) then
      job.priority = 0
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
